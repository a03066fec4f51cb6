"""Ends tasks by asking them: the next beat of a cancelled task raises ``TaskCancelled``.

::

    runs              ─► its next beat tells it ─► it cleans up ─► REVOKED, acknowledged
    in the pool       ─► REVOKED before its own code begins
    waits at a worker ─► REVOKED now
    anywhere else     ─► refused by every worker that heard of it, as after Celery's revoke

A holder may lose the lease at the same moment: so every worker that hears of it refuses the task
from then on, and whichever gets the message next revokes it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from celery_lease.core import board as beatboard
from celery_lease.worker import compat

if TYPE_CHECKING:
    from collections.abc import Collection

    from celery.worker.consumer import Consumer

    from celery_lease.worker.held import Held
    from celery_lease.worker.leases import Leases


class Reaction(StrEnum):
    """What a worker did about a task that is to be cancelled."""

    TOLD = "told"  #: it runs, or is about to: its next beat tells it
    REVOKED = "revoked"  #: it waited here, and is settled
    WAITS = "waits"  #: it waits here, and is revoked when its time comes
    LOST = "lost"  #: it runs here, and has lost its lease: its next beat tells it that
    PLAIN = "plain"  #: it runs here without a lease, so it has no beats
    UNKNOWN = "unknown"  #: it is not here


def cancel(
    leases: Leases, task_ids: Collection[str], consumer: Consumer | None
) -> dict[str, dict[str, Any]]:
    """Cancel tasks; return for each id what was done here.

    Args:
        leases: The worker's leases.
        task_ids: The tasks.
        consumer: Whose main loop this thread is: what waits there is revoked at once. None: it is
            another thread, and what waits is revoked when its time comes.
    """
    for task_id in task_ids:
        compat.refuse(task_id)
    done = {task_id: {"state": str(Reaction.UNKNOWN)} for task_id in task_ids}
    done |= {each: {"state": str(Reaction.PLAIN)} for each in compat.plain_tasks(task_ids)}
    with leases.lock:
        helds = [held for held in leases.held() if held.lease.task_id in done]
        reactions = [(held, _tell(leases, held)) for held in helds]
    for held, reaction in reactions:
        lease = held.lease
        main = consumer if reaction is Reaction.WAITS else None
        if main is not None and compat.revoke_waiting(main, lease.claim.tag):
            done[lease.task_id] = {"state": str(Reaction.REVOKED), "task": lease.name}
        else:
            done[lease.task_id] = _facts(leases, held, reaction)
    return done


def _tell(leases: Leases, held: Held) -> Reaction:
    """Tell a task that has its record; under the lock, so that the record is still its own."""
    if not held.lease.is_held:
        return Reaction.LOST
    if held.slot is None:
        return Reaction.WAITS
    leases.board.flag(held.slot, beatboard.FLAG_CANCELLED)
    return Reaction.TOLD


def _facts(leases: Leases, held: Held, reaction: Reaction) -> dict[str, Any]:
    lease, now = held.lease, leases.clock.now()
    return {
        "state": str(reaction),
        "task": lease.name,
        "mode": str(lease.policy.mode),
        "beat_age": round(max(0.0, now - held.beat), 1) if held.beat else None,
        "remaining": round(max(0.0, lease.deadline - now), 1),
        "pid": held.pid,
    }
