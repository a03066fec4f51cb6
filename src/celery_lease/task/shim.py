"""Runs a command for a task, and ends all its processes with the task's process.

It is a program of its own, started by its path: ``python -I -S shim.py DESCRIPTOR``. The descriptor
is a socket to the task's process, which sends the command and may ask for its end. If the socket is
closed, or the parent changes, the task's process is gone.

On Linux the shim inherits the command's orphans, so that no process escapes by a second fork or a
session of its own. Elsewhere it knows the command's process group. Exit codes and signals are
passed through. Background processes of a command that ended by itself are left alone.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
import select
import signal
import socket
import subprocess
import sys
import time  # noqa: TID251  (a program of its own)
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

#: The message of the task's process that asks for the command's end.
END = b"\x01"
#: Seconds between two looks at the parent and at ending processes, and the most that a kill may
#: take.
LOOK, GONE_LOOK, DEATH = 0.5, 0.02, 5.0

_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


class Shim:
    """One command, and the task's process that started it. Has a single thread."""

    def __init__(self, task: socket.socket) -> None:
        task.settimeout(None)
        task.set_inheritable(False)
        self._task = task
        self._parent = os.getppid()
        self._news, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if _LINUX else _pipe()
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._command: subprocess.Popen[bytes] | None = None
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:  # the command inherits ignored ones
                signal.signal(number, self._pass_on)

    def run(self) -> NoReturn:
        """Start the command, watch it, and exit as it did."""
        with self._task.makefile("rb") as file:
            arguments, options, grace = pickle.load(file)  # noqa: S301  (from the parent)
        command = self._start(arguments, options)
        while command.poll() is None:
            order = self._wait(LOOK)
            if order == END:
                self._end(command, grace)
            elif order is not None or os.getppid() != self._parent:
                self._kill(command)
        _end_as(command.returncode)

    def _start(self, arguments: Any, options: dict[str, Any]) -> subprocess.Popen[bytes]:
        if _LINUX:
            prctl = ctypes.CDLL(None).prctl
            prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            options["preexec_fn"] = lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        failed = None
        try:
            self._command = subprocess.Popen(arguments, **options)  # noqa: S603
        except Exception as exc:  # noqa: BLE001  (it is raised in the task's process)
            failed = exc
        self._task.sendall(pickle.dumps(failed))
        self._task.shutdown(socket.SHUT_WR)
        if self._command is None:
            sys.exit(1)
        null = os.open(os.devnull, os.O_RDWR)
        for each in (0, 1, 2):  # the command has them; their other ends have to see them closed
            os.dup2(null, each)
        return self._command

    def _wait(self, seconds: float) -> bytes | None:
        """Wait for an event and reap zombies; return the task's message, b"" if it is gone."""
        ready = select.select([self._task.fileno(), self._news], [], [], seconds)[0]
        with suppress(BlockingIOError):
            os.read(self._news, 4096)
        self._reap()
        if self._task.fileno() not in ready:
            return None
        try:
            return self._task.recv(1)
        except OSError:
            return b""

    def _reap(self) -> None:
        """Reap orphans that have ended, but not the command, whose status is read elsewhere."""
        with suppress(ChildProcessError):
            while _LINUX and (
                ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            ):
                if self._command is None or ended.si_pid == self._command.pid:
                    return
                os.waitpid(ended.si_pid, 0)

    def _end(self, command: subprocess.Popen[bytes], grace: float) -> None:
        """Ask the command and its group to end; kill the remaining ones after *grace* seconds."""
        self._send(command, signal.SIGTERM)
        ends = time.monotonic() + grace
        while time.monotonic() < ends and self._lives(command):
            if self._wait(GONE_LOOK) == b"":
                break
        self._kill(command)

    def _lives(self, command: subprocess.Popen[bytes]) -> bool:
        """Whether the command runs, or, after its end, any process of its own group."""
        if command.poll() is None:
            return True
        try:
            os.killpg(command.pid, 0)  # the number is free by now, or its own group's
        except ProcessLookupError:
            return False
        except PermissionError:  # macOS, for a group of zombies
            return False
        return True

    def _kill(self, command: subprocess.Popen[bytes]) -> None:
        """Kill the command and all its descendants; orphans of killed processes become our own."""
        ends = time.monotonic() + DEATH
        while time.monotonic() < ends:
            with suppress(ProcessLookupError, PermissionError):
                if command.poll() is None or not _LINUX:  # there a group's members are children
                    os.killpg(command.pid, signal.SIGKILL)
            if command.poll() is None:
                command.kill()
            children = _children()
            for each in children:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(each, signal.SIGKILL)
            if command.poll() is not None and not children:
                return
            select.select([self._news], [], [], GONE_LOOK)
            with suppress(BlockingIOError):
                os.read(self._news, 4096)
            self._reap()

    def _send(self, command: subprocess.Popen[bytes], number: int) -> None:
        """Send a signal to the command's own group, or, if others are in it, to the command."""
        with suppress(ProcessLookupError, PermissionError):
            group = os.getpgid(command.pid)
            if group == command.pid:
                os.killpg(group, number)
            elif group == os.getpid():  # the author has chosen the shim's own group
                signal.signal(number, signal.SIG_IGN)
                os.killpg(group, number)
            else:
                command.send_signal(number)

    def _pass_on(self, number: int, _frame: object) -> None:
        """Pass on a signal that was sent to this process; in one group the command has got it."""
        with suppress(ProcessLookupError):
            if self._command and os.getpgid(self._command.pid) != os.getpgrp():
                self._send(self._command, number)


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for each in ends:
        os.set_blocking(each, False)
    return ends


def _children() -> list[int]:
    """Return the children of this process that have not ended, where there is a ``/proc``."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            text = each.read_text(errors="replace")
            # The command's name, in parentheses, may hold anything; the rest follows it.
            state, parent = text[text.rindex(")") + 2 :].split()[:2]
            if int(parent) == os.getpid() and state not in "ZXx":
                found.append(int(each.parent.name))
    return found


def _end_as(code: int) -> NoReturn:
    """Exit with a code, or by the signal that ended the command, without a core file."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # of SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    Shim(socket.socket(fileno=int(sys.argv[1]))).run()
