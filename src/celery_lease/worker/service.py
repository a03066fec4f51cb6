"""A supervised thread that calls one function again and again."""

from __future__ import annotations

import logging
import random
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)


class Service:
    """Calls a function that returns the seconds to wait before the next call.

    An exception is logged with its traceback and the next call comes after *retry* seconds; the
    thread ends only by :meth:`stop`. If it ends otherwise, *on_death* is called: a worker that
    cannot keep its leases must not take more.
    """

    def __init__(
        self, name: str, once: Callable[[], float], *, retry: float, on_death: Callable[[], None]
    ) -> None:
        self._once = once
        self._retry = retry
        self._on_death = on_death
        self._wake: SimpleQueue[None] = SimpleQueue()  # its put() is safe in a signal handler
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        if not self._thread.is_alive() and not self._stopping:
            self._thread.start()

    def wake(self) -> None:
        """Make the next call now. Safe in a signal handler."""
        self._wake.put(None)

    def stop(self, timeout: float) -> bool:
        """End the thread after its current call; return whether it ended within *timeout* s."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping:
                # Jitter, so that workers started together do not ask the broker together.
                self._wait(self._call() * random.uniform(0.8, 1.0))  # noqa: S311
        finally:
            if not self._stopping:
                logger.critical("%s died; the worker stops", self._thread.name)
                self._on_death()

    def _wait(self, seconds: float) -> None:
        with suppress(Empty):
            self._wake.get(timeout=seconds)
            while True:  # many calls of wake() count as one
                self._wake.get_nowait()

    def _call(self) -> float:
        try:
            return self._once()
        except Exception:
            logger.exception("%s failed, next try in %g s", self._thread.name, self._retry)
            return self._retry
