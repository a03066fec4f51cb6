"""Reads the state of a task process from the operating system."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from celery_lease.core.clock import SystemClock

_NOT_RUNNING = frozenset("TtZXx")  # stopped, traced, zombie, dead; proc(5)


def is_alive(pid: int | None) -> bool:
    """Return whether a process exists and is neither stopped nor a zombie.

    A parent can find that out even where ``/proc`` is hidden (``hidepid``, ``ProtectProc``).
    """
    if pid is None:
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _exists(pid) and not _is_waited_for(pid)
    # The command's name, in parentheses, may hold anything; the state follows it.
    return stat[stat.rindex(")") + 2] not in _NOT_RUNNING


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _is_waited_for(pid: int) -> bool:
    """Return whether a child has ended or is stopped, without reaping it."""
    if not hasattr(os, "waitid"):
        return False
    news = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
    with suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, news) is not None
    return False


def is_gone(pid: int, within: float) -> bool:
    """Wait up to *within* seconds for the end of a killed process; return whether it ended."""
    clock, rest = SystemClock(), threading.Event()
    ends = clock.now() + within
    while is_alive(pid) and clock.now() < ends:
        rest.wait(0.005)
    return not is_alive(pid)
