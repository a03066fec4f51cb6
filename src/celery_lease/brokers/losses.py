"""Losses that this process has seen, for brokers that count deliveries but not why they ended.

A delivery that ends by a crash or an expiry is a loss, one that is handed back in order is none.
Where the broker cannot tell them apart, only those count that happened here: a message that kills
task processes is found out by the worker whose processes it kills, and one that waited through
many shutdowns is not taken for it. What this cannot see is a loss with its whole worker.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TypeVar

T = TypeVar("T")

#: Messages of which losses are remembered; of the longest unseen they are forgotten.
REMEMBERED = 10_000


class Losses:
    """Counts losses by message. Any thread may use it."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        #: Guards both tables.
        self._lock = threading.Lock()
        self._messages: OrderedDict[str, str] = OrderedDict()  # by the tags of their deliveries
        self._losses: OrderedDict[str, int] = OrderedDict()  # by message

    def delivered(self, tag: str, message: str, *, again: bool) -> int:
        """Take note of a delivery, and return the losses before it.

        Args:
            tag: Names the delivery.
            message: Names the message, over all of its deliveries; one without a name is lost
                without being counted.
            again: It was delivered before. Else it is another message, whatever its name.
        """
        if not message:
            return 0
        with self._lock:
            if not again:
                self._losses.pop(message, None)
            _put(self._messages, tag, message, self._remembered)
            return self._losses.get(message, 0)

    def of(self, tag: str) -> int:
        """Return the losses before a delivery that has not ended."""
        with self._lock:
            return self._losses.get(self._messages.get(tag, ""), 0)

    def lost(self, tag: str) -> None:
        """Count the end of a delivery as a loss; once, however often it is said."""
        with self._lock:
            message = self._messages.pop(tag, None)
            if message is not None:
                count = self._losses.get(message, 0) + 1
                _put(self._losses, message, count, self._remembered)


def _put(table: OrderedDict[str, T], key: str, value: T, most: int) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > most:
        table.popitem(last=False)
