"""Collects the signals of a process in a list, instead of running handlers.

Python's C-level handler writes each signal's number into a socket; the Python-level handler, which
has to exist for that, does nothing. So no code ever runs inside a handler, and one ``select`` waits
for signals, ended children and time. (``sigtimedwait`` would do, but macOS does not have it.)
"""

from __future__ import annotations

import select
import signal
import socket
from signal import SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, Signals
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import FrameType

#: The signals that a ``celery worker`` handles.
PASSED_ON = (SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2)

MOST_AT_ONCE = 4096


class Inbox:
    """Collects signals while it is open. For the main thread."""

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()
        self._reader.settimeout(0)
        self._writer.settimeout(0)
        # Full after thousands of unread signals; a further one may be lost.
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._previous: dict[Signals, Any] = {
            number: signal.signal(number, _ignore) for number in (*PASSED_ON, SIGCHLD)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._previous_fd)
        self._reader.close()
        self._writer.close()

    def wait(self, timeout: float | None) -> list[Signals]:
        """Return the signals that arrived, after *timeout* seconds at most; None: without a limit.

        SIGCHLD ends the wait and is not returned.
        """
        select.select([self._reader], [], [], timeout)
        try:
            numbers = self._reader.recv(MOST_AT_ONCE)
        except BlockingIOError:
            return []
        return [Signals(number) for number in numbers if number in PASSED_ON]


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; a handler must exist for the number to be written to the socket."""
