"""Reads a message of a task process to its end before the event loop is reset.

Where Celery resets the loop, at each stop before 5.7 and at each lost connection, the rest of a
message that was read in part is taken for the next one: its process waits for half a minute, or for
good, to be read.

Upstream: not reported; https://github.com/celery/celery/pull/9986 is about the same reset.
Versions: Celery 5.5.3 to 5.7.0.
"""

from __future__ import annotations

import logging
from inspect import isgenerator
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


logger = logging.getLogger(__name__)

#: Seconds that a task process has to continue a message that was read in part.
PATIENCE = 2.0


def read_to_the_end(consumer: Any) -> None:
    """Make the loop of a *consumer* read such messages to their end before it is reset."""
    hub = consumer.hub
    if hub is None:
        return
    reset = hub.reset

    def reset_between_messages() -> None:
        for descriptor, (callback, _) in list(hub.readers.items()):
            if isgenerator(callback):
                _finish(descriptor, callback)
        reset()

    hub.reset = reset_between_messages


def _finish(descriptor: int, reading: Iterator[Any]) -> None:
    try:
        while wait([descriptor], PATIENCE):
            next(reading)
    except (StopIteration, OSError, EOFError):  # it is read, or its process is gone
        return
    except Exception:  # an error in handling the message must not prevent the reset
        logger.exception("the end of a task could not be handled")
        return
    logger.warning(
        "half a message of a task process, and no more for %g s: it is discarded", PATIENCE
    )
