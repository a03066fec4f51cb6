"""One place of a process that knows whether it is to stop, and who wants to hear of it."""

from __future__ import annotations

import logging
import signal
import threading
from typing import TYPE_CHECKING, ClassVar

from .relay import SignalRelay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

logger = logging.getLogger(__name__)

#: What orchestrators and terminals send to a process that is to end.
STOPPING = (signal.SIGTERM, signal.SIGINT)


class ShutdownCoordinator:
    """Runs callbacks once when the process is told to stop, by a signal or by :meth:`trigger`.

    Example::

        coordinator = ShutdownCoordinator.install()
        coordinator.register(consumer.stop)
        while not coordinator.triggered:
            work()

    Callbacks run in one thread, outside any lock, the last registered first, as with ``atexit``:
    what was built last may need what was built before. Each runs exactly once; one that raises is
    logged with its traceback and the next one runs all the same. Thread-safe, except that none of
    it is for signal handlers: let :meth:`install` have the signals.
    """

    # Guards the creation and the forgetting of the process-wide one.
    _guard: ClassVar[threading.Lock] = threading.Lock()
    _process_wide: ClassVar[ShutdownCoordinator | None] = None

    def __init__(self) -> None:
        # Guards the two below; register, unregister and trigger take it, callbacks run without.
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self._told = False  # the callbacks were taken to be run
        self._triggered = False  # also written by the signal handler, which may not take the lock
        self.signals = SignalRelay(self._note, self._act)  #: which signals trigger it

    @classmethod
    def get(cls) -> ShutdownCoordinator:
        """Return the process-wide one; it exists from the first call on."""
        with ShutdownCoordinator._guard:
            if ShutdownCoordinator._process_wide is None:
                ShutdownCoordinator._process_wide = cls()
            return ShutdownCoordinator._process_wide

    @classmethod
    def install(cls, signals: Iterable[int] = STOPPING) -> ShutdownCoordinator:
        """Have the process-wide one triggered by signals; call it in the main thread.

        The handlers that were there are replaced, not called: :meth:`uninstall` puts them back.
        A second signal does nothing more. A child that is forked afterwards, without an ``exec``,
        takes these signals as if this had not been called.

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
        """Give the signals back and forget the process-wide one; the main thread only.

        For tests, and for programs that go on after a shutdown: :meth:`get` makes a new one.
        """
        with ShutdownCoordinator._guard:
            coordinator, ShutdownCoordinator._process_wide = ShutdownCoordinator._process_wide, None
        if coordinator is not None:
            coordinator.signals.restore()

    @property
    def triggered(self) -> bool:
        """Whether the process is to stop; callbacks may still be running, or about to."""
        return self._triggered

    def register(self, callback: Callable[[], object]) -> None:
        """Have ``callback`` run at shutdown; at once, in this thread, if that has begun.

        It should ask for the end of something, not wait for it: the next one waits meanwhile.
        """
        with self._lock:
            if not self._told:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def unregister(self, callback: Callable[[], object]) -> None:
        """Take one registration of ``callback`` back; nothing happens if there is none (left)."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def trigger(self) -> None:
        """Begin the shutdown: run the callbacks, in this thread. A second call does nothing."""
        with self._lock:
            if self._told:
                return
            self._told = self._triggered = True
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
