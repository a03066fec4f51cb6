"""Dead-letters a message that was lost too often, and fails its task.

Decided when its task is about to start, by the losses that the broker counted. A delivery counts
from the moment at which its task begins; see :mod:`.beginnings` for when the broker hears of it. A
message that was only reserved when its worker was killed has lost nothing. Only the worker that
moved the message to the dead-letter queue fails the task; a former holder does neither.
"""

from __future__ import annotations

import logging
from copy import copy
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import WorkerLostError
from celery.worker.request import Request

from celery_lease.celery_patches.wrapped_failures import unwrapped
from celery_lease.core.dead import DEAD_AGAIN
from celery_lease.core.delivery import Answer
from celery_lease.core.errors import TooManyDeliveries
from celery_lease.core.words import counted
from celery_lease.task import hooks
from celery_lease.worker import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_lease.core.lease import Lease
    from celery_lease.task.outcome import OutOfReach
    from celery_lease.worker.entries import LeaseHandle

logger = logging.getLogger(__name__)


def refuse(lease: Lease, dead_letter_queue_of: Callable[[str], str] | None) -> None:
    """Refuse the start of a task whose message was lost too often.

    Raises:
        TooManyDeliveries: It was; the error names the dead-letter queue.
    """
    claim = lease.claim
    if dead_letter_queue_of is None or claim.delivery_limit is not None:
        return  # there is no such queue, or the broker's own limit decides
    if claim.losses >= lease.policy.max_deliveries:
        queue = dead_letter_queue_of(claim.queue)
        if queue == claim.queue:  # a worker consumes the dead letters
            queue += DEAD_AGAIN
        raise TooManyDeliveries(lease.task_id, claim.losses, queue)


def dead_letter(request: Request, lease: LeaseHandle, exc: TooManyDeliveries) -> bool:
    """Move a request's message to its dead-letter queue and fail its task.

    Returns:
        Whether that was done. If not, another worker holds the message, or the broker did not
        answer and the message comes back when its lease expires.
    """
    answer = lease.leases.dead_letter(lease.tag, exc.queue)
    if answer is Answer.HELD:
        extra = lease.fields(request)
        logger.error("%s; see: celery -A APP lease dead show %s", exc, exc.task_id, extra=extra)
        _fail(request, exc, extra)
    elif answer is Answer.UNKNOWN:
        logger.critical(
            "task %s[%s] not started: lost %s, and the broker did not say whether it is in "
            "dead-letter queue %s now",
            request.name,
            request.id,
            counted(exc.losses, "time"),
            exc.queue,
            extra=lease.fields(request),
        )
    return answer is Answer.HELD


def stop_for(request: Request, lease: LeaseHandle, exc: OutOfReach) -> None:
    """Stop a worker whose task processes cannot reach its memory, before the message goes back.

    The fault is the installation's, not the task's: no loss is counted.
    """
    if lease.leases.intake.stopping:
        return  # it was logged before, or the worker stops and has closed its memory
    lease.leases.intake.stop()
    logger.error(
        "task %s[%s] not started: its process cannot reach the worker's memory (%s). The worker "
        "requeues its messages, counts no loss, and stops. Check what has removed or closed that "
        "file, or what keeps a task process from opening it",
        request.name,
        request.id,
        exc,
        extra=lease.fields(request),
    )
    compat.stop_worker()


class OutOfMemory(Exception):
    """Replaces a task's ``MemoryError``, at which Celery would end one worker after the other."""


def survivable(exc_info: Any, exc: MemoryError, *, stored: bool) -> Any:
    """Return the exception info that Celery gets for a task that ran out of memory.

    Args:
        exc_info: The pool's exception info.
        exc: Its error.
        stored: The task process has stored the failure: the task has failed, nothing else. If
            not, the delivery is lost, as by a killed process.
    """
    changed = copy(exc_info)
    text = f"out of memory: {exc!r}"
    changed.exception = OutOfMemory(text) if stored else WorkerLostError(text)
    changed.type = type(changed.exception)
    return changed


def _fail(request: Request, exc: TooManyDeliveries, extra: Mapping[str, object]) -> None:
    """Fail the task by Celery: result, errbacks, chord, signal, event; then call its hooks."""
    try:
        Request.on_failure(request, unwrapped(hooks.raised(exc)))
    except Exception:  # the backend's errors end a consumer; the message is safe already
        text = "failure of task %s[%s] not reported"
        logger.exception(text, request.name, request.id, extra=extra)
    context: Any = request._context  # type: ignore[attr-defined]  # noqa: SLF001
    hooks.call(request.task, context, states.FAILURE, exc, extra)
