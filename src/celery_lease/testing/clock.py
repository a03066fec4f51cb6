"""The clock of a test: it stands still until the test moves it.

While it is installed, contexts of this process read it instead of the host's clock. For that it
replaces the function that :mod:`celery_lease.task.context` calls, and the modules of its loops: a
clock that is passed to a context would make every beat of every worker slower by a tenth. So there
is one clock at a time, and a worker that runs in the test's own process must not run meanwhile; a
worker in a process of its own, as the fixture ``lease_worker`` starts, is not affected.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from celery_lease.core.clock import SystemClock, host_seconds
from celery_lease.task import context
from celery_lease.task.iterating import loop, places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The places where contexts and their loops find the function for the time.
_ASKED = (vars(context), vars(loop), vars(places))


class LeaseClock:
    """A clock that :meth:`advance` moves; a ``with`` block installs it.

    It starts at the host's time in whole seconds, so that sums of whole seconds are exact.
    """

    def __init__(self) -> None:
        self._stands_at = float(math.floor(host_seconds()))
        self._wall = SystemClock().wall() - timedelta(seconds=self._stands_at)
        self._runs_since: float | None = None
        self._watchers: list[Callable[[], None]] = []
        self._replaced: list[Any] = []

    def now(self) -> float:
        """Return the seconds on this clock, which are only roughly comparable with the host's."""
        if self._runs_since is None:
            return self._stands_at
        return self._stands_at + host_seconds() - self._runs_since

    def wall(self) -> datetime:
        """Return the date and time for :meth:`now`."""
        return self._wall + timedelta(seconds=self.now())

    def advance(self, seconds: float) -> None:
        """Move the clock by *seconds*; leases that are silent for too long expire.

        Raises:
            ValueError: The clock would go backwards.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"a clock moves forward by a number of seconds, not {seconds!r}")
        self._stands_at += seconds
        for watcher in self._watchers:
            watcher()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count real time, too, within the block."""
        if self._runs_since is not None:
            yield
            return
        self._runs_since = host_seconds()
        try:
            yield
        finally:
            self._stands_at, self._runs_since = self.now(), None

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call *watcher* after each move."""
        self._watchers.append(watcher)

    def __enter__(self) -> Self:
        self._replaced.append(_ASKED[0]["host_seconds"])
        _ask(self.now)
        return self

    def __exit__(self, *_: object) -> None:
        _ask(self._replaced.pop())


def _ask(now: Callable[[], float]) -> None:
    """Make contexts read the time from *now*."""
    for names in _ASKED:
        names["host_seconds"] = now
