"""How long RabbitMQ waits for an acknowledgement, and what that leaves for a lease.

Its ``consumer_timeout`` counts from when it sent a message, for reserved ones too. Past it the
channel is closed under all tasks of the worker. AMQP has no way to ask for it: it is taken from the
queue's argument ``x-consumer-timeout`` (milliseconds, as RabbitMQ has it) if the worker knows
that, else from the transport option ``consumer_timeout`` (seconds; 0: the server has none), else
it is the server's default.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

logger = logging.getLogger(__name__)

OPTION = "consumer_timeout"
ARGUMENT = "x-consumer-timeout"
#: RabbitMQ's own default since 3.8.17, in seconds.
DEFAULT = 1800.0
#: Seconds before the timeout at which a lease ends, so that its task can be told, and the message
#: of one that does not listen returned by the reaper; of a short timeout no more than a third.
MARGIN = 60.0


def consumer_timeout(options: Mapping[str, Any], arguments: Iterable[Mapping[str, Any]]) -> float:
    """Return the seconds after which RabbitMQ closes the channel; infinite if it never does.

    Args:
        options: The connection's transport options.
        arguments: Of the consumer and of the queue; the first that sets a timeout decides.
    """
    for each in arguments:
        if ARGUMENT in each:
            return float(each[ARGUMENT]) / 1000
    return float(options.get(OPTION, DEFAULT) or math.inf)


class Limit:
    """The longest lease of one queue. For the consuming thread only."""

    def __init__(self, queue: str, timeout: float) -> None:
        self.queue = queue
        self.timeout = timeout
        self.seconds = timeout if math.isinf(timeout) else timeout - min(MARGIN, timeout / 3)
        self._told = False

    def tell(self, wanted: float) -> None:
        """Say once that some lease of the queue may end before it should."""
        if self._told or wanted <= self.seconds:
            return
        self._told = True
        logger.warning(
            "leases of queue %s end after %g s, although lease_max_duration is %g: RabbitMQ closes "
            "the channel of who keeps a message for %g s. Raise the server's consumer_timeout (or "
            "the queue's %s) and say so in broker_transport_options: {'%s': seconds}, or lower "
            "lease_max_duration",
            self.queue,
            self.seconds,
            wanted,
            self.timeout,
            ARGUMENT,
            OPTION,
        )
