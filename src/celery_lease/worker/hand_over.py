"""Hand over: an interruptible task ends at its next beat, and its message goes back to its queue.

What a stopping worker does to all of its interruptible tasks, an operator does here to one. The
worker stays up, and may get the message again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from celery_lease.core.loss import FLAG_SHUTDOWN
from celery_lease.worker import compat

if TYPE_CHECKING:
    from collections.abc import Collection

    from celery_lease.worker.held import Held
    from celery_lease.worker.leases import Leases


class Reaction(StrEnum):
    """What a worker did about a task that is to be handed over."""

    FLAGGED = "told"  #: its next beat raises ``ShutdownRequested``
    STEADFAST = "not_interruptible"  #: it runs, and nothing was done
    WAITS = "waits"  #: it has not started, and nothing was done
    LOST = "lost"  #: it runs here, and has lost its lease
    PLAIN = "plain"  #: it runs here without a lease
    UNKNOWN = "unknown"  #: it is not here


def hand_over(leases: Leases, task_ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Have tasks handed over; return for each id what was done here. Any thread may call it."""
    done = {task_id: {"state": str(Reaction.UNKNOWN)} for task_id in task_ids}
    done |= {each: {"state": str(Reaction.PLAIN)} for each in compat.plain_tasks(task_ids)}
    with leases.lock:
        for held in leases.held():
            if held.lease.task_id in done:
                reaction = _flag(leases, held)
                done[held.lease.task_id] = {"state": str(reaction), "task": held.lease.name}
    return done


def _flag(leases: Leases, held: Held) -> Reaction:
    """Flag a task that has its record; under the lock, so that the record is still its own."""
    if not held.lease.is_held:
        return Reaction.LOST
    if held.slot is None or held.pid is None:
        return Reaction.WAITS
    if not held.lease.policy.interruptible:
        return Reaction.STEADFAST
    leases.board.flag(held.slot, FLAG_SHUTDOWN)
    return Reaction.FLAGGED
