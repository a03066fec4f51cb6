"""Proof of progress inside one process: the last beat, and callbacks for each beat.

A beat takes no lock. It runs in the innermost loop of the work, perhaps inside a signal handler
that interrupted another beat, or as the first code of a forked child; a lock would cost more than
the rest of the beat and could deadlock in the latter two. Its writes are single attribute
assignments, and CPython switches threads (and runs signal handlers) at calls and backward jumps
only, so the two short updates in :meth:`Heartbeat.beat` are each undivided. Otherwise a beat could
count some microseconds too early, but never too late.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from celery_lease.core.clock import Clock, SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable


logger = logging.getLogger(__name__)


class Heartbeat:
    """Stores the time of the last beat and calls its callbacks at every beat. Thread-safe.

    Example::

        heartbeat = Heartbeat()
        heartbeat.add_callback(lambda: metrics.increment("beats"))
        for chunk in chunks:
            heartbeat.beat()
            encode(chunk)
    """

    __slots__ = ("_beats", "_callbacks", "_last", "_lock", "_now")

    def __init__(self, clock: Clock | None = None) -> None:
        """Start without a beat; the silence counts from now.

        Args:
            clock: The source of time; None: the host's clock.
        """
        self._now = (clock or SystemClock()).now
        self._last = self._now()
        self._beats = 0
        # Replaced, never changed in place: a beat uses the tuple that it found.
        self._callbacks: tuple[Callable[[], None], ...] = ()
        # Guards the replacement of _callbacks; add_callback and remove_callback take it, beats not.
        self._lock = threading.Lock()

    @property
    def beats(self) -> int:
        """The number of beats; a change of it means a new beat."""
        return self._beats

    def beat(self) -> None:
        """Prove progress, then run the callbacks in this thread, in the order they were added.

        An exception of a callback is logged with its traceback, and the next callback runs.
        """
        now = self._now()
        # Another thread may have written a later time. Not max(): threads switch at a call.
        if now > self._last:  # noqa: PLR1730
            self._last = now
        self._beats += 1  # after the time: a reader of the number finds its time
        if self._callbacks:
            self._notify(self._callbacks)

    def elapsed(self) -> float:
        """Return the seconds since the last beat, or since creation if there was none."""
        last = self._last  # read first, or a beat in between would make it negative
        return self._now() - last

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` at every beat, in the beating thread and outside any lock.

        If it is added twice, it is called twice.
        """
        with self._lock:
            self._callbacks = (*self._callbacks, callback)

    def remove_callback(self, callback: Callable[[], None]) -> None:
        """Remove one registration of ``callback``.

        A beat that another thread has begun may still call it once.

        Raises:
            ValueError: It is not registered.
        """
        with self._lock:
            kept = list(self._callbacks)
            kept.remove(callback)
            self._callbacks = tuple(kept)

    @staticmethod
    def _notify(callbacks: tuple[Callable[[], None], ...]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception:
                logger.exception("callback %r of a heartbeat failed, it is skipped", callback)
