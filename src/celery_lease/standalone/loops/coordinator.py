"""Records whether a process has to stop, and runs callbacks when it has to."""

from __future__ import annotations

import logging
import signal
import threading
from typing import TYPE_CHECKING, ClassVar

from .relay import SignalRelay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

logger = logging.getLogger(__name__)

#: The signals of orchestrators and terminals that stop a process.
STOPPING = (signal.SIGTERM, signal.SIGINT)


class ShutdownCoordinator:
    """Runs callbacks once when the process has to stop, by a signal or by :meth:`trigger`.

    Example::

        coordinator = ShutdownCoordinator.install()
        coordinator.register(consumer.stop)
        while not coordinator.triggered:
            work()

    Callbacks run in one thread, outside any lock, the last registered first, as with ``atexit``:
    objects that were built last may need those that were built before. Each runs exactly once; an
    exception is logged with its traceback, and the next callback runs. Thread-safe, but not for
    signal handlers: use :meth:`install` for signals.
    """

    # Guards the creation and the removal of the process-wide instance.
    _guard: ClassVar[threading.Lock] = threading.Lock()
    _process_wide: ClassVar[ShutdownCoordinator | None] = None

    def __init__(self) -> None:
        # Guards the two below; register, unregister and trigger take it, callbacks run without.
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self._called = False  # the callbacks were taken to be run
        self._triggered = False  # also written by the signal handler, which must not take the lock
        self.signals = SignalRelay(self._note, self._act)  #: the signals that trigger it

    @classmethod
    def get(cls) -> ShutdownCoordinator:
        """Return the process-wide instance, which is created by the first call."""
        with ShutdownCoordinator._guard:
            if ShutdownCoordinator._process_wide is None:
                ShutdownCoordinator._process_wide = cls()
            return ShutdownCoordinator._process_wide

    @classmethod
    def install(cls, signals: Iterable[int] = STOPPING) -> ShutdownCoordinator:
        """Make signals trigger the process-wide instance. For the main thread.

        The former handlers are replaced, not called: :meth:`uninstall` restores them. A second
        signal has no further effect. A child that is forked later, without an ``exec``, handles
        these signals as if this had not been called.

        Python handles a signal when the main thread next executes Python code, so let it wait with
        a timeout, again and again, rather than for ever (:meth:`LoopGroup.run` does).

        Raises:
            RuntimeError: This is not the main thread, the only one that may set handlers.
            OSError: A signal cannot be handled, as SIGKILL.
        """
        coordinator = cls.get()
        coordinator.signals.install(signals)
        return coordinator

    @classmethod
    def uninstall(cls) -> None:
        """Restore the handlers and forget the process-wide instance. For the main thread.

        For tests, and for programs that go on after a shutdown: :meth:`get` creates a new instance.
        """
        with ShutdownCoordinator._guard:
            coordinator, ShutdownCoordinator._process_wide = ShutdownCoordinator._process_wide, None
        if coordinator is not None:
            coordinator.signals.restore()

    @property
    def triggered(self) -> bool:
        """Whether the process has to stop; callbacks may still be running, or about to."""
        return self._triggered

    def register(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` at shutdown; at once, in this thread, if that has begun.

        It should request the end of something, not wait for it: the next callback would wait, too.
        """
        with self._lock:
            if not self._called:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def unregister(self, callback: Callable[[], object]) -> None:
        """Remove one registration of ``callback``; do nothing if there is none."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def trigger(self) -> None:
        """Begin the shutdown: run the callbacks, in this thread. A second call does nothing."""
        with self._lock:
            if self._called:
                return
            self._called = self._triggered = True
            callbacks, self._callbacks = self._callbacks[::-1], []
        for callback in callbacks:
            self._call(callback)

    def _note(self) -> None:
        self._triggered = True

    def _act(self, number: int) -> None:
        logger.info("%s: shutting down", signal.Signals(number).name)
        self.trigger()

    @staticmethod
    def _call(callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:
            logger.exception("callback %r failed at shutdown, it is skipped", callback)
