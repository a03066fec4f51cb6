"""Counters of leases: facts by task and queue, and the duration of calls to the broker.

A worker has its own :class:`Stats`. Extenders and consumers outside of a worker share
:data:`standalone`, one for the process.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from bisect import bisect_left
from collections import Counter
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable

#: Pairs of task and queue that are counted separately; all further ones count as OTHERS.
MOST_PAIRS = 200
OTHERS = ("(other)", "(other)")
#: Upper bounds, in seconds, of the classes for the duration of calls to the broker.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Fact(StrEnum):
    """The facts that are counted, by task and queue."""

    GRANTED = "granted"
    STARTED = "started"
    BEAT = "beat"  #: seen by the keeper: all beats between two of its looks count as one
    EXTENDED = "extended"  #: by the broker's answer
    LOST = "lost"  #: by the reason
    ENDED = "ended"  #: left this worker, by its ending
    PARKED = "parked"  #: began to wait at the broker for an exclusive key
    WAITED = "waited"  #: started after that


class Key(NamedTuple):
    """The key of a counter."""

    fact: Fact
    detail: str  #: an answer, a reason or an ending; or ""
    task: str
    queue: str


class RoundTripStats:
    """The duration of calls, counted in classes. For one writing thread."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)  #: of each class alone; the last has no upper bound
        self.seconds = 0.0  #: of all calls
        #: Called with each duration, for an exporter with classes of its own.
        self.observer: Callable[[float], object] = lambda _: None

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds
        self.observer(seconds)


class Stats:
    """Counters that only grow. Its callers make sure that one thread writes at a time."""

    def __init__(self) -> None:
        self.counts: Counter[Key] = Counter()
        self.round_trips = RoundTripStats()
        self._pairs: set[tuple[str, str]] = set()

    def count(self, fact: Fact, task: str, queue: str, detail: str = "") -> None:
        facts = (fact, detail, task, queue)  # equal to their key, and made sooner
        self.counts[facts if facts in self.counts else self._key(*facts)] += 1  # type: ignore[index]

    def _key(self, fact: Fact, detail: str, task: str, queue: str) -> Key:
        pair = (task, queue)
        if pair not in self._pairs:
            if len(self._pairs) < MOST_PAIRS:
                self._pairs.add(pair)
            else:
                pair = OTHERS
        return Key(fact, detail, *pair)


class Holding(Protocol):
    """A consumer that holds leases."""

    def queues_held(self) -> list[str]:
        """Return the queue of each held lease. From any thread."""
        ...


class StandaloneStats(Stats):
    """The counters of the extenders and consumers of one process. Thread-safe."""

    #: Values of the label ``task`` for extenders and for consumers.
    EXTENDER, CONSUMER = "(extender)", "(consumer)"

    def __init__(self) -> None:
        super().__init__()
        self.worker = f"{socket.gethostname()}:{os.getpid()}"  #: the label ``worker``
        self.holders: WeakSet[Holding] = WeakSet()  #: consumers that hold leases
        # Guards counts and round trips, for one addition; not taken by a beat that extends nothing.
        self._lock = threading.Lock()

    def count(self, fact: Fact, task: str, queue: str, detail: str = "") -> None:
        with self._lock:
            super().count(fact, task, queue, detail)

    def answered(self, task: str, queue: str, answer: str, seconds: float) -> None:
        """Count one extension, by the broker's answer, and its duration."""
        self.count(Fact.EXTENDED, task, queue, answer)
        with self._lock:
            self.round_trips.add(seconds)


standalone = StandaloneStats()


def _begin_anew() -> None:
    """Count from 0 in a forked child, with a new lock: the former numbers are its parent's."""
    standalone.__init__()  # type: ignore[misc]


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_begin_anew)


@cache
def label(words: str) -> str:
    """Return words as the value of a label: ``handed_back``, ``max_duration``."""
    return words.lower().replace(" ", "_").replace("-", "_")
