"""Messages that look like a task's and break Celery's own handling: none of them ends the worker.

Celery rejects what it finds to be no task, and dies of what it did not think of: an id that is a
list, a body of ``null``, a time limit that is no number. Such a message would end the next worker
too. Here it is put with the dead letters if it has a lease, or rejected as Celery rejects others.
An error that is not the message's fault is left to Celery, which ends the worker.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery import signals

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

logger = logging.getLogger(__name__)

#: What comes of data in an unexpected form. Brokers and result backends that are away raise others.
MALFORMED = (TypeError, ValueError, LookupError, AttributeError)
#: Characters that are logged of a message's headers, and as many of its body.
SHOWN = 1000


def outlive(consumer: Consumer) -> None:
    """Let a *consumer* go on after a message that its handler cannot deal with."""
    create = consumer.create_task_handler

    def create_task_handler(*args: Any, **options: Any) -> Any:
        handle = create(*args, **options)

        def on_task_received(message: Any) -> None:
            try:
                _check_time_limits(message.headers)
                handle(message)
            except MALFORMED as exc:
                if not _is_malformed(message):
                    raise
                _put_away(consumer, message, exc)

        return on_task_received

    consumer.create_task_handler = create_task_handler  # type: ignore[method-assign]


def _check_time_limits(headers: object) -> None:
    """Make sure that they are numbers: Celery finds out when its pool has the task.

    Raises:
        ValueError, TypeError: They are not.
    """
    limits = headers.get("timelimit") if isinstance(headers, Mapping) else None
    hard, soft = limits or (None, None)
    for each in (hard, soft):
        if each is not None:
            float(each)


def _is_malformed(message: Any) -> bool:
    """Whether what Celery reads of every message, of protocol 2 or 1, cannot be read."""
    headers = message.headers
    try:
        if "task" in headers:
            _args, _kwargs, _embedded = message.payload
        facts = headers if "task" in headers else message.payload
        hash(facts["task"])
        hash(facts["id"])
        _check_time_limits(headers)
    except Exception:  # noqa: BLE001  (a foreign body may break any decoder)
        return True
    return False


def _put_away(consumer: Any, message: Any, exc: Exception) -> None:
    """Take a message out of its queue for good, and say so."""
    lease = getattr(message, "lease", None)
    queue = None if lease is None else lease.leases.bury_malformed(lease.tag)
    if not message.acknowledged:  # also if it was buried, for its place in the prefetch window
        message.reject_log_error(logger, consumer.connection_errors)
    logger.error(
        "message is no task's, %s: %r; headers %.*r, body %.*r",
        "rejected" if queue is None else f"moved to queue {queue}",
        exc,
        *(SHOWN, message.headers),
        *(SHOWN, message.body),
    )
    signals.task_rejected.send(sender=consumer, message=message, exc=exc)
