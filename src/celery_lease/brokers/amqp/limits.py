"""Derives the longest lease on RabbitMQ from its timeout for an acknowledgement.

Its ``consumer_timeout`` counts from when it sent a message, also for reserved ones. After it the
channel is closed under all tasks of the worker. AMQP cannot read it: it is taken from the queue's
argument ``x-consumer-timeout`` (milliseconds, as RabbitMQ has it) if the worker knows that, else
from the transport option ``consumer_timeout`` (seconds; 0: the server has none), else it is the
server's default. If a server names it as it closes a channel, that value is used.

Since RabbitMQ 4.3 a quorum queue does this by itself: it takes its messages back and cancels the
consumer, without naming a time, and the channel stays open. A classic queue has no timeout any
more. Seen on 4.3.6; see also rabbitmq-server#16983.
"""

from __future__ import annotations

import logging
import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery_lease.brokers.amqp.counts import HEADER
from celery_lease.core.faults import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

logger = logging.getLogger(__name__)

OPTION = "consumer_timeout"
ARGUMENT = "x-consumer-timeout"
#: RabbitMQ's own default since 3.8.17, in seconds.
DEFAULT = 1800.0
#: A quorum queue's argument for its delivery limit, and the default.
LIMIT, DELIVERY_LIMIT = "x-delivery-limit", 20
#: The RabbitMQ releases from which on there is a default limit, nacks are not counted, and classic
#: queues have no consumer timeout.
LIMITED_BY_DEFAULT, NACKS_ARE_FREE, CLASSIC_WAITS = (4, 0), (4, 3), (4, 3)
#: The queue's argument for its type; without one it has that of its virtual host.
TYPE = "x-queue-type"
#: Seconds before the timeout at which a lease ends, so that its task gets the loss at a beat, and
#: the reaper can return the message of a task that does not; at most a third of a short timeout.
MARGIN = 60.0

_TIMED_OUT = re.compile(r"deliver\w* acknowledge?ment .*timed out")
_VALUE = re.compile(r"[Tt]imeout value used: (\d+) ms")
#: The server's timeout in seconds, once it has named it; written by the consuming thread.
_reported: list[float] = []
#: The type of a queue whose declaration names none: RabbitMQ's default, until it cancels a
#: consumer, as a quorum queue does at its timeout. Written by the consuming thread.
_assumed_type = ["classic"]


def consumer_timeout(
    options: Mapping[str, Any], arguments: Sequence[Mapping[str, Any]], version: str
) -> float:
    """Return the seconds after which RabbitMQ takes a message back; infinite if it never does.

    Args:
        options: The connection's transport options.
        arguments: The arguments of consumer and queue; the first that sets a timeout decides.
        version: RabbitMQ's version.
    """
    for each in arguments:
        if ARGUMENT in each:
            return float(each[ARGUMENT]) / 1000
    if _reported or OPTION in options:
        return min(_reported, default=float(options.get(OPTION) or 0) or math.inf)
    kind = next((each[TYPE] for each in arguments if TYPE in each), _assumed_type[0])
    return math.inf if kind == "classic" and _release(version) >= CLASSIC_WAITS else DEFAULT


def faulty_option(options: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what is wrong with the transport option, and the remedy; None: nothing is."""
    value = options.get(OPTION, DEFAULT)
    with suppress(TypeError, ValueError):
        if value is None or float(value) >= 0:
            return None
    return (
        f"broker_transport_options['{OPTION}'] is {shown(value)}",
        "Set it to the server's consumer_timeout in seconds; 0: the server has none",
    )


def learn(text: str) -> bool:
    """Read the timeout from RabbitMQ's error, as it closes a channel; False: another error.

    From 3.8.15 on its text is ``delivery acknowledgement on channel 1 timed out. Timeout value
    used: 1800000 ms``.
    """
    if not _TIMED_OUT.search(text):
        return False
    if value := _VALUE.search(text):
        _reported[:] = [int(value[1]) / 1000]
    return True


def consumer_cancelled(queue: str) -> None:
    """Log that the broker has cancelled a consumer, and no longer take queues for classic ones."""
    _assumed_type[0] = "quorum"
    logger.error(
        "RabbitMQ has cancelled the consumer of queue %s, and takes back all messages of this "
        "worker: the queue was deleted, or its consumer_timeout is shorter than the worker knows. "
        "Say it in broker_transport_options: {'%s': seconds}",
        queue,
        OPTION,
    )


def spends_budget(
    headers: Mapping[str, Any], arguments: Iterable[Mapping[str, Any]], version: str
) -> bool:
    """Whether the next return of a message, even an orderly one, would end it at RabbitMQ.

    A quorum queue drops a message, or dead-letters it, that is returned with a count at its
    ``x-delivery-limit``: 20 by default since 4.0, none before; a negative limit is none. Since 4.3
    a nack is not counted.

    Args:
        headers: The message's headers; only quorum queues write a count into them.
        arguments: The known arguments of the queue.
        version: RabbitMQ's version.
    """
    count = headers.get(HEADER)
    if not isinstance(count, int):
        return False
    release = _release(version)
    if not release or release >= NACKS_ARE_FREE:
        return False
    default = DELIVERY_LIMIT if release >= LIMITED_BY_DEFAULT else -1
    limit = next((each[LIMIT] for each in arguments if LIMIT in each), default)
    return 0 <= limit <= count


def version_of(channel: Any) -> str:
    """Return RabbitMQ's version by an open channel; "": it names none."""
    return str(channel.connection.server_properties.get("version", ""))


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


class Limit:
    """The longest lease of one queue. For the consuming thread only."""

    def __init__(self, queue: str, timeout: float) -> None:
        self.queue = queue
        self.timeout = timeout
        self.seconds = timeout if math.isinf(timeout) else timeout - min(MARGIN, timeout / 3)
        self._logged = False

    def log_if_short(self, wanted: float) -> None:
        """Log, once a queue, that a lease may end before *wanted* seconds."""
        if self._logged or wanted <= self.seconds:
            return
        self._logged = True
        logger.warning(
            "leases of queue %s end after %g s, although lease_max_duration is %g: RabbitMQ closes "
            "the channel of a consumer that keeps a message for %g s. Raise the server's "
            "consumer_timeout (or the queue's %s) and say so in broker_transport_options: "
            "{'%s': seconds}, or lower lease_max_duration",
            self.queue,
            self.seconds,
            wanted,
            self.timeout,
            ARGUMENT,
            OPTION,
        )
