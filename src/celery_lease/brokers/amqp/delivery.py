"""One message on the channel that delivered it, and the frames that settle it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amqp import spec
from amqp.exceptions import AMQPError

from celery_lease.brokers.amqp.frames import is_cut, spoil

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What py-amqp raises when a channel is closed before or while a frame is made: another thread
#: may close it at any moment, and a channel without a number cannot be packed.
CLOSED = (AMQPError, struct.error)


@dataclass(slots=True, eq=False)
class Delivery:
    """A message that this process holds; settled at most once, by who takes it from the driver."""

    channel: Any
    number: int  #: the broker's delivery tag, on this channel
    queue: str
    about: Mapping[str, Any]
    expiry: float  #: clock reading
    raw: Any = None  #: the message as it came
    deliveries: int = 1  #: this one included
    losses: int = 0
    is_dead_lettered: bool = False  #: the queue has a dead-letter exchange

    def acknowledge(self) -> bool:
        """Settle for good; False: the channel is gone, and the message with it."""
        return self._send(spec.Basic.Ack, False)  # noqa: FBT003  (multiple)

    def drop(self) -> bool:
        """Settle for good, for the queue's dead-letter exchange if it has one."""
        return self._send(spec.Basic.Reject, False)  # noqa: FBT003  (requeue)

    def give_back(self, *, orderly: bool) -> bool:
        """Return to the queue. RabbitMQ 4.3's quorum queues count a reject and no negative ack."""
        if orderly:
            return self._send(spec.Basic.Nack, False, True)  # noqa: FBT003  (multiple, requeue)
        return self._send(spec.Basic.Reject, True)  # noqa: FBT003  (requeue)

    def _send(self, method: Any, *bits: bool) -> bool:
        connection = self.channel.connection
        if connection is None or is_cut(connection):
            return False
        try:
            self.channel.send_method(method, "L" + "b" * len(bits), (self.number, *bits))
        except OSError:
            spoil(connection)
            return False
        except CLOSED:
            return False
        return True
