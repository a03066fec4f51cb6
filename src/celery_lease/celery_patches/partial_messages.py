"""Reads the messages that task processes have sent before the event loop is reset.

Where Celery resets the loop, at each stop before 5.7 and at each lost connection, the rest of a
message that was read in part is taken for the next one: its process waits for half a minute, or for
good, to be read. And a task whose start was sent, but is not read by then, is forgotten at a lost
connection: it is run again beside the run that has begun.

Upstream: not reported; https://github.com/celery/celery/pull/9986 is about the same reset.
Versions: Celery 5.5.3 to 5.7.0.
"""

from __future__ import annotations

import logging
from inspect import isgenerator
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Iterator


logger = logging.getLogger(__name__)

#: Seconds that a task process has to continue a message that was read in part.
MESSAGE_TIMEOUT = 2.0


def read_to_the_end(consumer: Any) -> None:
    """Make the loop of a *consumer* read such messages to their end before it is reset."""
    hub = consumer.hub
    if hub is None:
        return
    reset, known = hub.reset, ref(consumer)  # a loop may outlive its consumer, and its connections

    def reset_between_messages() -> None:
        for descriptor in _of_processes(known()):
            _read(hub, descriptor)
        reset()

    hub.reset = reset_between_messages


def _of_processes(consumer: Any) -> list[int]:
    """Return the descriptors on which task processes send; none in a pool of another kind."""
    processes = getattr(getattr(consumer, "pool", None), "_pool", None)
    return list(getattr(processes, "_fileno_to_outq", ()))


def _read(hub: Any, descriptor: int) -> None:
    """Read what a process has sent: its reader is replaced after each message."""
    finished = None
    while (reader := hub.readers.get(descriptor)) is not None and reader[0] is not finished:
        callback, arguments = reader
        if isgenerator(callback):
            if not _finish(descriptor, callback):
                return
            finished = callback
        elif wait([descriptor], 0):
            try:
                callback(*arguments)
            except Exception:
                logger.exception("a message of a task process could not be handled")
        else:
            return


def _finish(descriptor: int, reading: Iterator[Any]) -> bool:
    """Read a message that was read in part; return whether another may follow."""
    try:
        while wait([descriptor], MESSAGE_TIMEOUT):
            next(reading)
    except StopIteration:
        return True
    except (OSError, EOFError):  # its process is gone
        return False
    except Exception:  # an error in handling the message must not prevent the reset
        logger.exception("the end of a task could not be handled")
        return True
    logger.warning(
        "a task process sent half a message and nothing more for %g s: it is discarded",
        MESSAGE_TIMEOUT,
    )
    return False
