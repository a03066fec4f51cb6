"""What becomes of a request whose task needs an exclusive key.

The key is taken when the task is about to start: by pools of processes and by the solo pool when
the request goes to the pool, where a slot is free for it; by threads and greenlets when they accept
it, since more requests may wait in those pools than run.
"""

from __future__ import annotations

from typing import Any

from celery.exceptions import TaskRevokedError

from celery_lease.core.keys import KeyAnswer, Verdict
from celery_lease.worker import pools
from celery_lease.worker.entries import REVOKED, Ending, LeaseHandle
from celery_lease.worker.telemetry import log_messages


def turned_away(lease: LeaseHandle | None) -> KeyAnswer | None:
    """Return why a task was to be revoked when its message was received, if it was."""
    entry = lease.entry if lease is not None else None
    return None if entry is None else entry.lease.claim.turned_away


def take(request: Any, lease: LeaseHandle, *, settles: bool = True) -> None:
    """Take the key of a task that is about to start, and needs one.

    A process is free for it because another task is over: with *settles* that one's message is
    completed in the same call to the broker, and not by a second one when the pool reports its end.

    Raises:
        TaskRevokedError: The task must not start now; Celery's word for that.
    """
    if request.revoked():
        raise TaskRevokedError(request.id)
    answer = lease.leases.take_key(lease.tag, settles=settles)
    if answer.verdict is Verdict.HELD:
        return
    if answer.verdict.revokes:
        give_way(request, lease, answer)
    elif answer.verdict is Verdict.PARKED:
        request.end(lambda _: None)
    elif answer.verdict is Verdict.LOST:
        request.end(lease.leases.discard)
    else:  # it may have the key, or be parked: the broker knows when this is answered
        request.end(lambda tag: lease.leases.requeue([tag], ending=Ending.HANDED_BACK))
    raise TaskRevokedError(request.id)


def take_inside(request: Any, lease: LeaseHandle) -> None:
    """Take the key in a pool in which requests wait, by the thread or greenlet that accepts one.

    Raises:
        BaseException: It ends the thread's or greenlet's work without a word: nothing is to run.
    """
    try:
        take(request, lease, settles=False)
    except TaskRevokedError as exc:
        raise pools.end_of_work() from exc


def give_way(request: Any, lease: LeaseHandle, answer: KeyAnswer) -> None:
    """Revoke a task for its key; its lease is kept until that is stored."""
    entry = lease.entry
    key = entry.exclusive.key if entry is not None and entry.exclusive is not None else "?"
    reason = answer.reason(key)
    if entry is not None:
        log_messages.revoked(entry, reason)
    request.announce_revoked(reason, REVOKED[answer.verdict])
