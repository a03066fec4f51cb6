"""A message on the channel that delivered it, and the frames that settle it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amqp import spec
from amqp.exceptions import AMQPError

from celery_lease.brokers.amqp.frames import is_cut, spoil

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_lease.brokers.amqp.limits import Limit

#: Errors of py-amqp when a channel is closed before or while a frame is made: another thread may
#: close it at any moment, and a channel without a number cannot be packed.
CLOSED = (AMQPError, struct.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message as it was received, before it is claimed."""

    channel: Any
    number: int
    queue: str
    limit: Limit
    message_id: str
    headers: Mapping[str, Any]
    redelivered: bool
    raw: Any = None  #: py-amqp's message
    is_dead_lettered: bool = False  #: its queue has a dead-letter exchange
    is_last: bool = False  #: an orderly return would end it at the broker


@dataclass(slots=True, eq=False)
class Delivery:
    """A message that this process holds; settled at most once, by the thread that removes it."""

    channel: Any
    number: int  #: the broker's delivery tag, on this channel
    queue: str
    about: Mapping[str, Any]
    expiry: float  #: clock reading
    raw: Any = None  #: py-amqp's message
    deliveries: int = 1  #: this one included
    losses: int = 0
    is_dead_lettered: bool = False  #: the queue has a dead-letter exchange
    is_last: bool = False  #: an orderly return would end the message at the broker
    is_copied: bool = False  #: a copy is in the queue already

    def acknowledge(self) -> bool:
        """Acknowledge; False: the channel is gone, and the delivery with it."""
        return self._send(spec.Basic.Ack, False)  # noqa: FBT003  (multiple)

    def drop(self) -> bool:
        """Reject without requeueing; a dead-letter exchange of the queue gets the message."""
        return self._send(spec.Basic.Reject, False)  # noqa: FBT003  (requeue)

    def requeue(self, *, orderly: bool) -> bool:
        """Return to the queue. Quorum queues of RabbitMQ 4.3 count a reject, but not a nack."""
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
