"""What becomes of a message that was lost too often: it is put aside, and its task has failed.

Decided when its task is about to start, by the losses that the broker counted: a loss counts from
the moment of receipt, so that also a worker that is killed by each delivery counts them all. Only
who got the message into the dead-letter queue fails the task; a former holder does neither.
"""

from __future__ import annotations

import logging
from copy import copy
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import WorkerLostError
from celery.worker.request import Request

from celery_lease.core.delivery import Answer
from celery_lease.core.errors import TooManyDeliveries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_lease.core.lease import Lease
    from celery_lease.worker.held import Handle

logger = logging.getLogger(__name__)

#: What a dead-letter queue's name ends with that takes what died in a dead-letter queue.
DEAD_AGAIN = ".dead"


def refuse(lease: Lease, dead_letter_queue_of: Callable[[str], str] | None) -> None:
    """Let a task start, unless its message was lost too often.

    Raises:
        TooManyDeliveries: It was; the error names where the message belongs.
    """
    claim = lease.claim
    if dead_letter_queue_of is None or claim.delivery_limit is not None:
        return  # there is none, or the queue's own limit decides
    if claim.losses >= lease.policy.max_deliveries:
        queue = dead_letter_queue_of(claim.queue)
        if queue == claim.queue:  # a worker consumes the dead letters
            queue += DEAD_AGAIN
        raise TooManyDeliveries(lease.task_id, claim.losses, queue)


def bury(request: Request, lease: Handle, exc: TooManyDeliveries) -> bool:
    """Move a request's message to its dead-letter queue and fail its task.

    Returns:
        Whether that was done. If not, the message is somebody else's, or, where the broker did not
        answer, comes back when its lease expires.
    """
    answer = lease.leases.bury(lease.tag, exc.queue)
    if answer is Answer.HELD:
        extra = lease.fields(request)
        logger.error("%s; see: celery -A APP lease dead show %s", exc, exc.task_id, extra=extra)
        _fail(request, exc, extra)
    elif answer is Answer.UNKNOWN:
        logger.critical(
            "task %s[%s] not started: lost %d times, and the broker did not tell whether it is in "
            "dead-letter queue %s now",
            request.name,
            request.id,
            exc.losses,
            exc.queue,
            extra=lease.fields(request),
        )
    return answer is Answer.HELD


class OutOfMemory(Exception):
    """Stands for a task's ``MemoryError``, for which Celery ends the worker, and then the next."""


def survivable(exc_info: Any, exc: MemoryError, *, stored: bool) -> Any:
    """Return what to tell Celery of a task that ran out of memory.

    Args:
        exc_info: What the pool told.
        exc: The error in it.
        stored: The task process has stored the failure: the task has failed, and that is all. Else
            it got nowhere, which is the loss of a delivery as by a killed process.
    """
    told = copy(exc_info)
    text = f"out of memory: {exc!r}"
    told.exception = OutOfMemory(text) if stored else WorkerLostError(text)
    told.type = type(told.exception)
    return told


def _fail(request: Request, exc: TooManyDeliveries, extra: Mapping[str, object]) -> None:
    """Let Celery fail the task in its own words: result, errbacks, chord, signal, event."""
    try:
        Request.on_failure(request, _info(exc))
    except Exception:  # the backend's errors end a consumer; the message is safe already
        text = "failure of task %s[%s] not told"
        logger.exception(text, request.name, request.id, extra=extra)


def _info(exc: TooManyDeliveries) -> ExceptionInfo:
    try:
        raise exc
    except type(exc):
        return ExceptionInfo()
