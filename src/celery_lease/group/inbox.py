"""The signals that a process got, as a list to read instead of handlers that run anywhere.

Python's C-level handler writes each signal's number into a socket; the Python-level handler that
must exist for that does nothing. So nothing ever runs inside a handler, and one ``select`` waits
for signals, ended children and time alike. (``sigtimedwait`` would do, but macOS has none.)
"""

from __future__ import annotations

import select
import signal
import socket
from signal import SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, Signals
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import FrameType

#: What a ``celery worker`` reacts to.
PASSED_ON = (SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2)

MOST_AT_ONCE = 4096


class Inbox:
    """Collects signals while it is open; the main thread's."""

    def __enter__(self) -> Self:
        """Begin to collect."""
        self._reader, self._writer = socket.socketpair()
        self._reader.settimeout(0)
        self._writer.settimeout(0)
        # Full after thousands of unread signals; a lost one more is no news.
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._previous: dict[Signals, Any] = {
            number: signal.signal(number, _ignore) for number in (*PASSED_ON, SIGCHLD)
        }
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._previous_fd)
        self._reader.close()
        self._writer.close()

    def wait(self, timeout: float | None) -> list[Signals]:
        """Return what arrived, at the latest after *timeout* seconds; None: when something did.

        SIGCHLD ends the wait and is not among them.
        """
        select.select([self._reader], [], [], timeout)
        try:
            numbers = self._reader.recv(MOST_AT_ONCE)
        except BlockingIOError:
            return []
        return [Signals(number) for number in numbers if number in PASSED_ON]


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Be there, so that the number is written to the socket."""
