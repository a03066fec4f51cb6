"""Collects the Python stack of a task process that crashed, in the main process.

A forked task process lets :mod:`faulthandler` write into a file in memory, and sends that file to
the main process at its start, over a socket that was made before the fork. So the file needs no
name, the main process needs no right to look into the other, and they need not live at the same
time. A spawned process has no such socket: the watchdog opens its file by ``/proc`` while it runs a
task, within a second. A process that has already enabled faulthandler, or has a handler of its own
for one of its signals, keeps that; enabling it later takes its place. A platform without files in
memory has no stack.

The main thread asks for a stack, the watchdog's thread collects files in between. No lock: both do
single operations of the socket and of a dict; the thread that pops an entry closes its file.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from celery_lease.worker.diagnosis import LONGEST_STACK, _of_task, _signals
from celery_lease.worker.processes import is_alive

if TYPE_CHECKING:
    from collections.abc import Collection

#: The signals that faulthandler writes a stack for.
CRASHES = frozenset({"SIGSEGV", "SIGFPE", "SIGABRT", "SIGBUS", "SIGILL"})
#: Files kept of crashed processes whose stack was not asked for yet.
KEPT = 16

_NAME = "celery-lease-crash"
_FATAL = "Fatal Python error: "
_PID = struct.Struct("=q")


class Desk:
    """Receives the files into which task processes write their last stack."""

    def __init__(self, *, looks: bool = False) -> None:
        """*looks*: task processes are spawned, so their files are looked up in ``/proc``."""
        self._looks = looks
        self._ours, self._theirs = socket.socketpair()
        self._ours.settimeout(0)
        self._theirs.settimeout(0)
        self._files: dict[int, int] = {}  # by process number

    def leave(self, fd: int) -> bool:
        """Send a file to the main process; False: its queue is full."""
        for each in self._files.values():  # of other processes, inherited
            with suppress(OSError):
                os.close(each)
        self._files = {}
        with suppress(OSError):
            return socket.send_fds(self._theirs, [_PID.pack(os.getpid())], [fd]) == _PID.size
        return False

    def collect(self, running: Collection[int] = ()) -> None:
        """Receive the files of new processes; close those of processes that ended without a crash.

        Args:
            running: Numbers of processes that run tasks.
        """
        if self._looks:
            self._look(running)
        with suppress(OSError):  # there is no more
            while True:
                data, fds, _, _ = socket.recv_fds(self._ours, _PID.size, 1)
                if not data:
                    break
                for fd in fds:
                    os.set_inheritable(fd, False)  # noqa: FBT003  (positional only)
                    self._drop(pid := int(_PID.unpack(data)[0]))
                    self._files[pid] = fd
        gone = [pid for pid in list(self._files) if not is_alive(pid)]
        crashed = [pid for pid in gone if self._size(pid)]
        for pid in {*gone} - {*crashed[-KEPT:]}:
            self._drop(pid)

    def _look(self, running: Collection[int]) -> None:
        for pid in [each for each in running if each not in self._files]:
            with suppress(OSError):  # hidden, or gone meanwhile
                for each in Path(f"/proc/{pid}/fd").iterdir():
                    if _NAME in str(each.readlink()):
                        self._files[pid] = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
                        break

    def stack_of(self, pid: int) -> str:
        """Return the text that a process wrote when it crashed, once; "" if there is none."""
        self.collect()
        fd = self._files.pop(pid, None)
        if fd is None:
            return ""
        try:
            text = os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")
        finally:
            os.close(fd)
        return _readable(text)

    def close(self) -> None:
        """Close the sockets and all files."""
        self._ours.close()
        self._theirs.close()
        for pid in list(self._files):
            self._drop(pid)

    def _size(self, pid: int) -> int:
        fd = self._files.get(pid)
        with suppress(OSError):
            return 0 if fd is None else os.fstat(fd).st_size
        return 0

    def _drop(self, pid: int) -> None:
        fd = self._files.pop(pid, None)
        if fd is not None:
            os.close(fd)


#: This process's desk; in a task process that of the main process. Set once, before the fork.
_desks: list[Desk] = []


def open_desk(*, looks: bool = False) -> None:
    """Make the desk, once in a process, before its task processes are started."""
    if not _desks and hasattr(os, "memfd_create"):
        _desks.append(Desk(looks=looks))


def offer() -> None:
    """Enable faulthandler in this task process with such a file, unless it has handlers already."""
    if not hasattr(os, "memfd_create") or faulthandler.is_enabled() or _handles_crashes():
        return
    fd = os.memfd_create(_NAME, os.MFD_CLOEXEC)
    if not _desks or _desks[0].leave(fd):  # a spawned process has no desk: its file is looked up
        faulthandler.enable(fd, all_threads=True)
    else:
        os.close(fd)


def collect(running: Collection[int]) -> None:
    """Receive the files of task processes; *running*: the numbers of those that run tasks."""
    for each in _desks:
        each.collect(running)


def stack_of(pid: int | None, cause: str) -> str:
    """Return the stack of a process that ended by *cause*; "" if that is no crash, or left none."""
    if cause not in CRASHES or pid is None:
        return ""
    return next((stack for each in _desks if (stack := each.stack_of(pid))), "")


def _handles_crashes() -> bool:
    caught = _signals("self", "SigCgt")
    return any(caught >> (signal.Signals[name] - 1) & 1 for name in CRASHES)


def _readable(text: str) -> str:
    """Return the last crash, its own thread first; a child may have written one before."""
    crash = text.rpartition(_FATAL)[2].partition("\nExtension modules")[0]
    head, *threads = crash.strip().split("\n\n")
    threads.sort(key=lambda each: not each.startswith("Current thread"))
    return _of_task("\n\n".join([head, *threads])[:LONGEST_STACK])
