"""Starts, signals and reaps processes; the group's only module that does.

Every member leads a process group of its own. So a terminal's Ctrl-C reaches only the parent, once,
and the processes that a dead worker leaves behind can be ended with it.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from signal import SIGKILL, Signals
from typing import TYPE_CHECKING

from .plan import NAME_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .plan import Member

STDIN = 0
FROM_SHELL = 128  #: the number that shells add to a signal for an exit code

# Python ignores these, and an ignored signal stays ignored across exec.
IGNORED_BY_PYTHON = [getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ")]


def spawn(member: Member) -> int:
    """Start a member and return its process id; call it in the main thread.

    Linux ties a child's life to the *thread* that started it.
    """
    command = [sys.executable, "-m", "celery_lease.group.exec", str(os.getpid()), *member.command]
    return os.posix_spawn(
        sys.executable,
        command,
        {**os.environ, NAME_VARIABLE: member.name},
        file_actions=[(os.POSIX_SPAWN_OPEN, STDIN, os.devnull, os.O_RDONLY, 0)],
        setpgroup=0,
        setsigdef=IGNORED_BY_PYTHON,
    )


def deliver(pid: int, number: Signals) -> None:
    """Send a signal to a member that :func:`reap` has not returned; SIGKILL to its whole group."""
    if number == SIGKILL:
        end_group(pid)
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def end_group(pid: int) -> None:
    """Kill the remaining processes of the group that a member led."""
    # macOS raises PermissionError for a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, SIGKILL)


def reap() -> Iterator[tuple[int, int]]:
    """Reap all children that have ended, including orphans that process 1 has inherited.

    Yields:
        Process id and exit code, or 128 + the number of the signal that ended it.
    """
    with suppress(ChildProcessError):  # no children at all
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            code = os.waitstatus_to_exitcode(status)
            yield pid, code if code >= 0 else FROM_SHELL - code
