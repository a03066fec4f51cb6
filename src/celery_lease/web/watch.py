"""One watch for all viewers, and answers that they share.

Threads: the watch's thread writes :attr:`PageWatch.latest`, which is replaced as a whole; any
thread reads it. :class:`Shared` is for any thread; its lock guards the dictionary only, no
question.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from celery_lease.cli.watch import Watch
from celery_lease.core.clock import SystemClock
from celery_lease.view import LeaseRow, Sources, View
from celery_lease.web.history import History
from celery_lease.web.rates import Rates

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping


T = TypeVar("T")

#: Seconds without a viewer before looks are rarer, the interval then, and before they stop.
SLOW_AFTER, SLOW, STOP_AFTER = 30.0, 10.0, 3600.0
#: Seconds that a viewer waits for a first look.
FIRST = 4.0
#: The most answers that are kept at once.
MOST_ANSWERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """All leases at one look."""

    number: int = 0  #: grows with each look, also with a failed one
    view: View = field(default_factory=View)
    at: float = 0.0  #: clock reading; 0: there was no look yet
    wall: float = 0.0  #: seconds since 1970
    askable: bool = True  #: workers can be asked on this broker
    trouble: str = ""  #: the reason why there is no newer look
    rates: Mapping[str, float] = field(default_factory=dict)  #: progress per second, by tag
    made: dict[Hashable, Any] = field(default_factory=dict)  #: results for all viewers

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return a result computed from this look, once for all viewers."""
        if key not in self.made:
            self.made[key] = make()
        made: T = self.made[key]
        return made


@dataclass
class PageWatch(Watch):
    """Looks at most once a second while there are viewers, and rarely otherwise."""

    interval: float = 1.0
    latest: Look = field(default_factory=Look)
    history: History = field(default_factory=History)
    viewed_at: float = float("-inf")
    _rates: Rates = field(default_factory=Rates)
    _wake: threading.Event = field(default_factory=threading.Event)
    _fresh: threading.Event = field(default_factory=threading.Event)
    _starting: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def current(self) -> Look:
        """Return the latest look for a viewer; after a long pause wait for a new one."""
        idle = self.clock.now() - self.viewed_at
        self.viewed_at = self.clock.now()
        if idle > SLOW_AFTER or not self.latest.number:
            self._fresh.clear()
            self._start()
            self._wake.set()
            self._fresh.wait(FIRST)
        return self.seen()

    def seen(self) -> Look:
        """Return the latest look, with the trouble if the next one takes too long."""
        look, trouble = self.latest, self.trouble()
        return replace(look, trouble=trouble) if trouble and not look.trouble else look

    def row_now(self, row: LeaseRow, look: Look) -> LeaseRow:
        """Return a row of a look as of now, if nothing has changed since."""
        return row.aged(max(0.0, self.clock.now() - look.at))

    def rest(self, seconds: float) -> None:
        """Wait before the next look; longer without viewers."""
        idle = self.clock.now() - self.viewed_at
        if idle > STOP_AFTER:
            self._wake.wait()
        elif idle > SLOW_AFTER:
            self._wake.wait(max(seconds, SLOW))
        else:
            self.over.wait(seconds)
        self._wake.clear()

    def is_wanted(self) -> bool:
        return super().is_wanted() and self.clock.now() - self.viewed_at <= STOP_AFTER

    def close(self) -> None:
        self.over.set()
        self._wake.set()

    def ask(self, found: Sources) -> dict[str, Any]:
        """Ask all sources once, and store the result as the latest look."""
        replies = super().ask(found)
        now, wall = self.clock.now(), self.clock.wall().timestamp()
        view = self.collector.view(now)
        who = [each for identities in self.collector.known.values() for each in identities]
        self.history.take(view, who, wall)
        self.latest = Look(
            number=self.latest.number + 1,
            view=view,
            at=now,
            wall=wall,
            askable=found.ask is not None,
            rates=self._rates.take(view.rows, now),
        )
        self._fresh.set()
        return replies

    def failed(self, why: str) -> None:
        """Record a failed look; the last rows stay."""
        super().failed(why)
        number = self.latest.number + 1
        self.latest = replace(self.latest, number=number, trouble=why, rates={}, made={})
        self._fresh.set()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self.run, name="celery-lease-web", daemon=True
                )
                self._thread.start()


@dataclass
class _Answer:
    lock: threading.Lock = field(default_factory=threading.Lock)  #: the thread that asks holds it
    at: float = float("-inf")
    value: Any = None
    trouble: click.ClickException | None = None


class Shared:
    """Answers of the broker, kept for some seconds: for any number of viewers it is asked once."""

    def __init__(self, clock: SystemClock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._answers: dict[Hashable, _Answer] = {}
        self._lock = threading.Lock()  # guards the dictionary

    def get(self, key: Hashable, seconds: float, make: Callable[[], T]) -> T:
        """Return the result of *make* of the last *seconds*, or call it.

        Raises:
            click.ClickException: The error of *make*.
        """
        with self._lock:
            answer = self._answers.pop(key, None) or _Answer()
            self._answers[key] = answer  # the last one used
            for old in list(self._answers)[:-MOST_ANSWERS]:
                del self._answers[old]
        with answer.lock:
            if self._clock.now() - answer.at > seconds:
                answer.value, answer.trouble = None, None
                try:
                    answer.value = make()
                except click.ClickException as exc:
                    answer.trouble = exc
                answer.at = self._clock.now()
            if answer.trouble is not None:
                raise answer.trouble
            value: T = answer.value
            return value

    def forget(self) -> None:
        """Drop all answers: something was changed."""
        with self._lock:
            self._answers.clear()
