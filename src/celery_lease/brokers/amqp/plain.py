"""Returns messages without a lease before RabbitMQ's consumer timeout closes their channel.

RabbitMQ would close it under all tasks of the worker. So a plain message is returned just before,
by the holder's decision: RabbitMQ would return it a moment later, with all others. Later frames for
it, such as its task's acknowledgement, are not sent: the broker no longer knows its number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_lease.brokers.amqp.limits import Limit


@dataclass(frozen=True, slots=True)
class PlainMessage:
    """A message that the channel has delivered, and that is not settled yet."""

    message: Any
    limit: Limit
    received_at: float  #: clock reading


class PlainMessages:
    """The plain messages of one channel, by their numbers.

    Touched by the consuming thread, by threads that settle, and by the keeper's. No lock: the
    thread that removes an entry, which is one operation, is the one that may settle the message.
    """

    def __init__(self) -> None:
        self._held: dict[int, PlainMessage] = {}
        self._returned: set[int] = set()

    def put(self, number: int, message: PlainMessage) -> None:
        """Store a message, unless the broker waits for it for ever."""
        if not math.isinf(message.limit.seconds):
            self._held[number] = message

    def settles(self, number: int) -> bool:
        """Return whether the caller may settle a message; False: it was returned already."""
        if self._held.pop(number, None) is not None:
            return True
        if number in self._returned:
            self._returned.discard(number)
            return False
        return True

    def overdue(self, now: float) -> list[tuple[int, PlainMessage]]:
        """Remove and return the messages whose timeout is near; the caller returns them."""
        taken = []
        for number, each in tuple(self._held.items()):
            if now < each.received_at + each.limit.seconds:
                continue
            self._returned.add(number)  # before: an acknowledgement may come in between
            if self._held.pop(number, None) is None:
                self._returned.discard(number)
            else:
                taken.append((number, each))
        return taken

    def oldest(self, most: int) -> list[PlainMessage]:
        return list(self._held.values())[:most]

    def clear(self) -> None:
        """Forget all messages: the channel is gone, and the next one has the same numbers."""
        self._held.clear()
        self._returned.clear()
