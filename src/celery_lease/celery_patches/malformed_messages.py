"""Keeps a worker alive after a malformed task message that breaks Celery's own handling.

Celery rejects messages that it recognizes as malformed, and ends at others: an id that is a list, a
body of ``null``, a time limit that is no number. Such a message would end the next worker, too.
Here it is dead-lettered if possible, or rejected as Celery rejects others. An error with another
cause is left to Celery, which ends the worker.

Upstream: https://github.com/celery/celery/issues/7975 and /4308.
Versions: Celery 5.5.3 to 5.7.0.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import signals

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

#: The errors for data in an unexpected form. Unreachable brokers and result backends raise others.
MALFORMED = (TypeError, ValueError, LookupError, AttributeError)
#: The most characters that are logged of a message's headers, and of its body.
SHOWN = 1000


def outlive(consumer: Any, dead_letter: Callable[[Any], str | None] = lambda _: None) -> None:
    """Make a *consumer* go on after a message that its handler cannot process.

    *dead_letter* moves a message to a dead-letter queue and returns its name, or None if it failed.
    """
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
                _put_away(consumer, message, exc, dead_letter(message))

        return on_task_received

    consumer.create_task_handler = create_task_handler


def _check_time_limits(headers: object) -> None:
    """Check that the time limits are numbers: Celery finds out only when its pool has the task.

    Raises:
        ValueError, TypeError: They are not.
    """
    limits = headers.get("timelimit") if isinstance(headers, dict) else None
    hard, soft = limits or (None, None)
    for each in (hard, soft):
        if each is not None:
            float(each)


def _is_malformed(message: Any) -> bool:
    """Whether the parts that Celery reads of every message, of protocol 2 or 1, are unusable."""
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


def _put_away(consumer: Any, message: Any, exc: Exception, queue: str | None) -> None:
    """Remove a message from its queue for good, and log it."""
    if not message.acknowledged:  # also a dead letter: this frees its place in the prefetch window
        message.reject_log_error(logger, consumer.connection_errors)
    logger.error(
        "message is not a task's, %s: %r; headers %.*r, body %.*r",
        "rejected" if queue is None else f"moved to queue {queue}",
        exc,
        *(SHOWN, message.headers),
        *(SHOWN, message.body),
    )
    signals.task_rejected.send(sender=consumer, message=message, exc=exc)
