"""What the operating system says of a task process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from celery_lease.core.clock import SystemClock

_NOT_RUNNING = frozenset("TtZXx")  # stopped, traced, zombie, dead; proc(5)


def is_alive(pid: int | None) -> bool:
    """Tell whether a process exists and is neither stopped nor waiting to be buried."""
    if pid is None:
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return not Path("/proc/self/stat").exists() and _exists(pid)
    except OSError:
        return _exists(pid)
    # The command's name, in parentheses, may hold anything; the state follows it.
    return stat[stat.rindex(")") + 2] not in _NOT_RUNNING


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_gone(pid: int, within: float) -> bool:
    """Wait up to *within* seconds for the end of a process that was killed."""
    clock, rest = SystemClock(), threading.Event()
    ends = clock.now() + within
    while is_alive(pid) and clock.now() < ends:
        rest.wait(0.005)
    return not is_alive(pid)
