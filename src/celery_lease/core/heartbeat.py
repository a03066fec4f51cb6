"""Proof of progress inside one process: who beats, when it was last, and who wants to hear of it.

A beat takes no lock. It stands in the innermost loop of the work, may run inside a signal handler
that interrupted another beat, and may be the first thing that a forked child does; a lock would
cost more than the rest of the beat and could deadlock in the latter two. What it writes are
single attribute assignments, and CPython switches threads (and runs signal handlers) at calls and
backward jumps only, so the two short updates in :meth:`Heartbeat.beat` are each undivided. Were
they not, the harm would be a beat that counts some microseconds too early, never too late.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from celery_lease.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.core.clock import Clock

logger = logging.getLogger(__name__)


class Heartbeat:
    """Remembers the last beat and tells its callbacks about every one. Thread-safe.

    Example::

        heartbeat = Heartbeat()
        heartbeat.add_callback(lambda: metrics.increment("beats"))
        for chunk in chunks:
            heartbeat.beat()
            encode(chunk)
    """

    __slots__ = ("_beats", "_callbacks", "_last", "_lock", "_now")

    def __init__(self, clock: Clock | None = None) -> None:
        """Start counting the silence from now.

        Args:
            clock: Where the time comes from; None: the host's clock.
        """
        self._now = (clock or SystemClock()).now
        self._last = self._now()
        self._beats = 0
        # Replaced, never changed in place: a beat goes through whichever it found.
        self._callbacks: tuple[Callable[[], None], ...] = ()
        # Guards the replacement of _callbacks; add_callback and remove_callback take it, beats not.
        self._lock = threading.Lock()

    @property
    def beats(self) -> int:
        """How many beats there were; a number that changed means a beat that is new."""
        return self._beats

    def beat(self) -> None:
        """Prove progress, then run the callbacks in this thread, in the order they were added.

        A callback that raises is logged with its traceback and the next one runs all the same.
        """
        now = self._now()
        # Another thread may have written a later one. Not max(): a call is where threads switch.
        if now > self._last:  # noqa: PLR1730
            self._last = now
        self._beats += 1  # after the time: who sees the number sees its time as well
        if self._callbacks:
            self._tell(self._callbacks)

    def elapsed(self) -> float:
        """Return the seconds since the last beat, or since creation if there was none."""
        last = self._last  # read first, or a beat in between would make it negative
        return self._now() - last

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` run at every beat, in the beating thread and outside any lock.

        Added twice, it runs twice.
        """
        with self._lock:
            self._callbacks = (*self._callbacks, callback)

    def remove_callback(self, callback: Callable[[], None]) -> None:
        """Take one registration of ``callback`` back.

        A beat that another thread began before may still run it once.

        Raises:
            ValueError: It is not registered.
        """
        with self._lock:
            kept = list(self._callbacks)
            kept.remove(callback)
            self._callbacks = tuple(kept)

    @staticmethod
    def _tell(callbacks: tuple[Callable[[], None], ...]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception:
                logger.exception("callback %r of a heartbeat failed, it is skipped", callback)
