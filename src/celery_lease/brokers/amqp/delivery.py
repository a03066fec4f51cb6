"""A message on the channel that delivered it, and the frames that settle it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
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


@dataclass(slots=True, eq=False, kw_only=True)
class Delivery:
    """A message that this process got; settled at most once, by the thread that removes it."""

    channel: Any
    number: int  #: the broker's delivery tag, on this channel
    limit: Limit  #: of its queue
    message_id: str
    headers: Mapping[str, Any]
    redelivered: bool
    raw: Any = None  #: py-amqp's message
    is_dead_lettered: bool = False  #: the queue has a dead-letter exchange
    is_last: bool = False  #: an orderly return would end the message at the broker
    is_copied: bool = False  #: a copy is in the queue already
    # Since it is claimed:
    about: Mapping[str, Any] = field(default_factory=dict)
    expiry: float = 0.0  #: clock reading
    deliveries: int = 1  #: this one included
    losses: int = 0

    @property
    def queue(self) -> str:
        return self.limit.queue

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
