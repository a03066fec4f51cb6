"""Time that tests move by hand, for threads that wait as well."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Real seconds after which a test gives up on another thread; no test that passes waits for it.
PATIENCE = 20.0


class FakeClock:
    """A :class:`celery_lease.core.clock.Clock` that stands still until it is moved.

    :meth:`wait_for` stands in for ``threading.Condition.wait_for`` where code takes a waiter, so
    that a thread under test waits on this clock too.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._start = now
        self._waits: dict[object, tuple[threading.Condition, float | None]] = {}
        self._changed = threading.Condition()  # guards _now and _waits

    def now(self) -> float:
        """Return the seconds set."""
        return self._now

    def wall(self) -> datetime:
        """Return a date that moves along, from the first day of 2030."""
        return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=self._now - self._start)

    def advance(self, seconds: float) -> None:
        """Let time pass and wake the threads in :meth:`wait_for` that wait for a time."""
        with self._changed:
            self._now += seconds
            waits = list(self._waits.values())
        conditions = [condition for condition, until in waits if until is not None]
        for condition in conditions:
            with condition:
                condition.notify_all()

    def wait_for(
        self, condition: threading.Condition, done: Callable[[], bool], timeout: float | None
    ) -> bool:
        """Wait until ``done()``, or until the clock was advanced by ``timeout`` seconds."""
        until = None if timeout is None else self._now + timeout
        this = object()
        while not done() and (until is None or self._now < until):
            with self._changed:
                self._waits[this] = (condition, until)
                self._changed.notify_all()
            condition.wait()
        with self._changed:
            self._waits.pop(this, None)
        return done()

    def until_waiting(self, until: float | None) -> None:
        """Return once a thread waits for the clock to show ``until`` (None: for no time at all)."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: any(waiting == until for _, waiting in self._waits.values()), PATIENCE
            ), f"no thread waits until {until}, but: {list(self._waits.values())}"
