"""Hand over: an interruptible task ends at its next beat, and its message goes back to its queue.

What a stopping worker does to all of its interruptible tasks, an operator does here to one. The
worker stays up, and may get the message again.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from celery_lease.core.loss import FLAG_SHUTDOWN
from celery_lease.worker import compat

if TYPE_CHECKING:
    from collections.abc import Collection

    from celery_lease.worker.entries import LeaseEntry
    from celery_lease.worker.registry import LeaseRegistry


class Reaction(StrEnum):
    """What a worker did about a task that is to be handed over."""

    FLAGGED = "told"  #: its next beat raises ``ShutdownRequested``
    STEADFAST = "not_interruptible"  #: it runs, and nothing was done
    WAITS = "waits"  #: it has not started, and nothing was done
    LOST = "lost"  #: it runs here, and has lost its lease
    PLAIN = "plain"  #: it runs here without a lease
    UNKNOWN = "unknown"  #: it is not here


def hand_over(
    leases: LeaseRegistry, task_ids: Collection[str], heard_at: float = math.inf
) -> dict[str, dict[str, Any]]:
    """Have tasks handed over; return for each id what was done here. Any thread may call it.

    Args:
        leases: The worker's leases.
        task_ids: The tasks.
        heard_at: When the command arrived; it is not meant for a run that has started since.
    """
    done = {task_id: {"state": str(Reaction.UNKNOWN)} for task_id in task_ids}
    done |= {each: {"state": str(Reaction.PLAIN)} for each in compat.plain_tasks(task_ids)}
    with leases.lock:
        for entry in leases.entries():
            if entry.lease.task_id in done:
                reaction = _flag(leases, entry, heard_at)
                done[entry.lease.task_id] = {"state": str(reaction), "task": entry.lease.name}
    return done


def _flag(leases: LeaseRegistry, entry: LeaseEntry, heard_at: float) -> Reaction:
    """Flag a task that has its record; under the lock, so that the record is still its own."""
    if not entry.lease.is_held:
        return Reaction.LOST
    if entry.slot is None or entry.pid is None or leases.started_at(entry) > heard_at:
        return Reaction.WAITS
    if not entry.lease.policy.interruptible:
        return Reaction.STEADFAST
    leases.board.flag(entry.slot, FLAG_SHUTDOWN)
    return Reaction.FLAGGED
