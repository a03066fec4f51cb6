"""Cancels tasks: the next beat of a cancelled task raises ``TaskCancelled``.

::

    runs              ─► its next beat raises TaskCancelled ─► it cleans up ─► REVOKED
    in the pool       ─► REVOKED before its own code begins
    waits at a worker ─► REVOKED now
    anywhere else     ─► refused by every worker that heard of it, as after Celery's revoke

A holder may lose the lease at the same moment. So every worker that receives the command refuses
the task from then on, and the one that gets the message next revokes it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from celery_lease.core.loss import FLAG_CANCELLED
from celery_lease.worker import compat

if TYPE_CHECKING:
    from collections.abc import Collection

    from celery.worker.consumer import Consumer

    from celery_lease.worker.entries import LeaseEntry
    from celery_lease.worker.registry import LeaseRegistry


class Reaction(StrEnum):
    """The result of a cancellation at one worker."""

    FLAGGED = "told"  #: it runs, or is about to: its next beat raises TaskCancelled
    REVOKED = "revoked"  #: it waited here, and is settled
    WAITS = "waits"  #: it waits here, and is revoked when its time comes
    LOST = "lost"  #: it runs here, and has lost its lease: its next beat raises LeaseLost
    PLAIN = "plain"  #: it runs here without a lease, so it has no beats
    UNKNOWN = "unknown"  #: it is not here


def cancel(
    leases: LeaseRegistry, task_ids: Collection[str], consumer: Consumer | None
) -> dict[str, dict[str, Any]]:
    """Cancel tasks; return the result at this worker for each task id.

    Args:
        leases: The worker's leases.
        task_ids: The tasks.
        consumer: The consumer, if this thread is its main loop: reserved tasks are revoked at once.
            None: another thread; reserved tasks are revoked when their time comes.
    """
    for task_id in task_ids:
        compat.refuse(task_id)
    done = {task_id: {"state": str(Reaction.UNKNOWN)} for task_id in task_ids}
    done |= {each: {"state": str(Reaction.PLAIN)} for each in compat.plain_tasks(task_ids)}
    with leases.lock:
        entries = [entry for entry in leases.entries() if entry.lease.task_id in done]
        reactions = [(entry, _flag(leases, entry)) for entry in entries]
    for entry, reaction in reactions:
        lease = entry.lease
        main = consumer if reaction is Reaction.WAITS else None
        if main is not None and compat.revoke_waiting(main, lease.claim.tag):
            done[lease.task_id] = {"state": str(Reaction.REVOKED), "task": lease.name}
        else:
            done[lease.task_id] = _facts(leases, entry, reaction)
    return done


def _flag(leases: LeaseRegistry, entry: LeaseEntry) -> Reaction:
    """Set a task's flag on the board. The caller holds the lock: the record is still the task's."""
    if not entry.lease.is_held:
        return Reaction.LOST
    if entry.slot is None:
        return Reaction.WAITS
    leases.board.flag(entry.slot, FLAG_CANCELLED)
    return Reaction.FLAGGED


def _facts(leases: LeaseRegistry, entry: LeaseEntry, reaction: Reaction) -> dict[str, Any]:
    lease, now = entry.lease, leases.clock.now()
    return {
        "state": str(reaction),
        "task": lease.name,
        "mode": str(lease.policy.mode),
        "beat_age": round(max(0.0, now - entry.beat), 1) if entry.beat else None,
        "remaining": round(max(0.0, lease.deadline - now), 1),
        "pid": entry.pid,
    }
