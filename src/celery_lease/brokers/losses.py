"""Counts the losses that this process has seen, for brokers that count only deliveries.

A delivery that ends by a crash or an expiry is a loss, an orderly return is none. Where the broker
cannot distinguish them, only the losses of this process count: a message that kills task processes
is recognized by the worker whose processes it kills, and one that was returned by many shutdowns is
not taken for it. Not counted is a loss together with its whole worker.

A delivery that was followed by another one, without an end of its own, is a loss if its task had
begun: the message may be back before this process has seen that the task died.

The known facts of each loss are kept for the message's dead letter.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from celery_lease.core.clock import Clock, SystemClock
from celery_lease.core.dead import LOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


T = TypeVar("T")

#: Messages whose losses are remembered; the longest unseen are forgotten first.
REMEMBERED = 10_000
#: Messages whose losses are kept with their facts, and losses kept of each. With the longest stacks
#: that is some 5 MB.
KEPT, KEPT_OF_EACH = 100, 20
#: Longest history that goes with a dead letter, in bytes of JSON.
ROOM = 16_000


@dataclass(slots=True)
class _Delivery:
    """A delivery that has not ended in this process."""

    message: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    waits: bool = True  #: its task has not begun


#: Stands for an unknown delivery.
_NONE = _Delivery()


class Losses:
    """Counts losses by message. Any thread may use it."""

    def __init__(self, clock: Clock | None = None, remembered: int = REMEMBERED) -> None:
        self._clock = clock or SystemClock()
        self._remembered = remembered
        #: Guards all tables.
        self._lock = threading.Lock()
        self._deliveries: OrderedDict[str, _Delivery] = OrderedDict()  # by tag
        #: The tag of a message's last delivery, until that ends.
        self._last: OrderedDict[str, str] = OrderedDict()
        self._losses: OrderedDict[str, int] = OrderedDict()  # by message
        self._histories: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()  # by message

    def delivered(
        self, tag: str, message: str, *, again: bool, waits: bool = True, **about: object
    ) -> int:
        """Record a delivery; return the number of losses before it.

        Args:
            tag: The delivery's tag.
            message: The message's id, the same in all of its deliveries; the losses of a message
                without an id are not counted.
            again: It was delivered before. If not, it is another message, even under the same id.
            waits: Its task has not begun.
            about: Further facts, for the dead letter; ``since``: when, in seconds since 1970.
        """
        if not message:
            return 0
        if again and not self.waits(former := self._last.get(message, "")):
            self.lost(former, reason="expired")
        with self._lock:
            if not again:
                self._losses.pop(message, None)
                self._histories.pop(message, None)
            remember(self._deliveries, tag, _Delivery(message, about, waits), self._remembered)
            remember(self._last, message, tag, self._remembered)
            return self._losses.get(message, 0)

    def begin(self, tags: Iterable[str]) -> None:
        with self._lock:
            for tag in tags:
                if tag in self._deliveries:
                    self._deliveries[tag].waits = False

    def waits(self, tag: str) -> bool:
        """Whether the task of a delivery has not begun; True for an unknown delivery."""
        return self._deliveries.get(tag, _NONE).waits

    def of(self, tag: str) -> int:
        """Return the losses before a delivery that has not ended."""
        with self._lock:
            message = self._deliveries.get(tag, _NONE).message
            return self._losses.get(message, 0)

    def history(self, tag: str, room: int = ROOM) -> list[dict[str, Any]]:
        """Return the facts of the losses before a delivery, in at most *room* bytes of JSON.

        If they are longer, the oldest stacks are left out first, then the oldest losses.
        """
        with self._lock:
            message = self._deliveries.get(tag, _NONE).message
            history = [dict(each) for each in self._histories.get(message, ())]
        return _fitting(history, min(room, ROOM))

    def lost(
        self, tag: str, why: Mapping[str, object] | None = None, *, reason: str = LOST
    ) -> None:
        """Count the end of a delivery as a loss; later calls for it do nothing."""
        ended = self._clock.wall().timestamp()
        with self._lock:
            delivery = self._end(tag)
            if message := delivery.message:
                count = self._losses.get(message, 0) + 1
                remember(self._losses, message, count, self._remembered)
                facts = {"ended": ended, "reason": reason, **delivery.about, **(why or {})}
                past = [*self._histories.get(message, ()), facts]
                remember(self._histories, message, past[-KEPT_OF_EACH:], KEPT)

    def returned(
        self, tags: Iterable[str], why: Mapping[str, object] | None, *, orderly: bool
    ) -> None:
        """Record the return of messages; one that is not *orderly* is a loss."""
        if orderly:
            self.ended(tags)
        else:
            for tag in tags:
                self.lost(tag, why)

    def ended(self, tags: Iterable[str]) -> None:
        """Forget deliveries that ended in order; the losses of their messages are kept."""
        with self._lock:
            for tag in tags:
                self._end(tag)

    def _end(self, tag: str) -> _Delivery:
        delivery = self._deliveries.pop(tag, _NONE)
        if self._last.get(delivery.message) == tag:
            del self._last[delivery.message]
        return delivery


def _fitting(history: list[dict[str, Any]], room: int) -> list[dict[str, Any]]:
    for each in history:
        if len(json.dumps(history)) <= room:
            return history
        each.pop("stack", None)
    while history and len(json.dumps(history)) > room:
        del history[0]
    return history


def remember(table: OrderedDict[str, T], key: str, value: T, most: int) -> None:
    """Set an item of a table, which forgets the longest unseen if it has more than *most*."""
    table[key] = value
    table.move_to_end(key)
    if len(table) > most:
        table.popitem(last=False)
