"""Handles signals in a thread, and only notes them in their handlers.

A Python signal handler interrupts the main thread anywhere, also while it holds a lock that the
handler would need. So the handler assigns a flag and puts into a ``SimpleQueue``, whose ``put`` may
interrupt itself; the thread that reads the queue does everything else.
"""

from __future__ import annotations

import os
import signal
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType


class SignalRelay:
    """Calls a function in a thread whenever one of its signals arrives."""

    def __init__(self, note: Callable[[], None], act: Callable[[int], None]) -> None:
        """Prepare; no handler is installed yet.

        Args:
            note: Runs inside the handler: only assignments.
            act: Runs in the thread, with the signal's number; must not raise.
        """
        self._note = note
        self._act = act
        self._previous: dict[int, Any] = {}  # main thread only, as handlers are
        self._arrived: SimpleQueue[int | None] = SimpleQueue()
        self._pid = 0  # of the process that has the thread

    def install(self, signals: Iterable[int]) -> frozenset[int]:
        """Install handlers for signals; signals that have them already are left alone.

        Returns:
            The signals that got a handler.

        Raises:
            RuntimeError: This is not the main thread, the only one that may set handlers.
            OSError: A signal cannot be handled, as SIGKILL.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "signal handlers can be installed in the main thread only: call install() there, "
                "before the thread that waits for the shutdown is started"
            )
        self._see_to_the_thread()
        new = frozenset(signals) - self._previous.keys()
        for number in new:
            self._take(number)
        return new

    def restore(self, signals: Iterable[int] | None = None) -> None:
        """Restore the former handlers of signals, by default of all. For the main thread."""
        for number in list(self._previous if signals is None else signals):
            previous = self._previous.pop(number)
            if signal.getsignal(number) == self._handle:  # otherwise the handler was replaced since
                signal.signal(number, previous)
        if not self._previous and self._pid == os.getpid():
            self._pid = 0
            self._arrived.put(None)

    def _take(self, number: int) -> None:
        previous = signal.getsignal(number)
        # Before the handler can run. None: a handler that Python does not know and cannot restore.
        self._previous[number] = signal.SIG_DFL if previous is None else previous
        try:
            signal.signal(number, self._handle)
        except OSError:
            del self._previous[number]
            raise

    def _see_to_the_thread(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._arrived = SimpleQueue()
            target, args = self._run, (self._arrived,)
            threading.Thread(target=target, args=args, name="lease-signals", daemon=True).start()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._pid == os.getpid():
            self._note()
            self._arrived.put(number)
        else:  # a forked child has no such thread: act as without a handler
            signal.signal(number, self._previous[number])
            os.kill(os.getpid(), number)

    def _run(self, arrived: SimpleQueue[int | None]) -> None:
        while (number := arrived.get()) is not None:
            self._act(number)
