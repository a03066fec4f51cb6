"""Finds out what a silent task process is doing, from the kernel and from its Python stack.

A task process offers its Python stack: a signal that is otherwise unused makes :mod:`faulthandler`
write it into a file in memory, by C code that needs neither the interpreter's lock nor its loop.
The main process finds file and signal by the file's name, and signals only a process that catches
the signal. On a platform without them the diagnosis knows less, and nothing fails.

All waits are bounded and short: the watchdog's thread waits, and no lease depends on it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from celery_lease.core.clock import SystemClock
from celery_lease.core.ticket import Ticket
from celery_lease.worker.processes import is_alive

if TYPE_CHECKING:
    from types import FrameType

#: Seconds over which a process's use of the processor is measured, and the share that is busy.
SAMPLE, BUSY_SHARE = 0.2, 0.5
#: Seconds that a process is given to write its stack, and between two looks at it.
STACK_TIMEOUT, STACK_LOOK = 0.5, 0.02
#: Characters of a stack that are kept.
LONGEST_STACK = 8000

_OFFER = "celery-lease-stack-"  # followed by the number of the signal that asks for it
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
#: A stack whose first frame is in this file is no longer the task's.
_BEFORE_TASK = "/celery/app/trace.py"
#: Indexes of state and utime (stime follows) in the fields after the command's name, see proc(5).
_STATE, _UTIME = 0, 11


class Doing(StrEnum):
    """The state of a silent task."""

    BUSY = "busy on CPU"
    BLOCKED = "blocked in a call"
    STOPPED = "stopped"
    GONE = "gone"
    UNKNOWN = "silent"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The facts known about a silent task."""

    doing: Doing
    where: str = ""  #: the kernel function in which it waits
    cpu: float = 0.0  #: share of one processor that it uses
    stack: str = ""  #: of its Python code, the most recent call first

    def __str__(self) -> str:
        """Return a short description, without the stack."""
        if self.doing is Doing.BUSY:
            return f"{self.doing} ({self.cpu:.0%})"
        return f"{self.doing} ({self.where})" if self.where else str(self.doing)


def offer_stack() -> None:
    """Enable the dump of this task process's stack by a signal, where the platform allows it."""
    number = _free_signal()
    if number is None or not hasattr(os, "memfd_create"):
        return
    fd = os.memfd_create(f"{_OFFER}{number}", os.MFD_CLOEXEC)
    faulthandler.register(number, file=fd, all_threads=True)


def of_process(pid: int) -> Diagnosis:
    """Find out what a task process is doing, by its number."""
    doing, cpu = _doing(Path(f"/proc/{pid}"))
    if doing is Doing.GONE and is_alive(pid):
        doing = Doing.UNKNOWN  # its files are hidden
    asks = doing in (Doing.BUSY, Doing.BLOCKED)  # a stopped one does not answer
    where = _where(Path(f"/proc/{pid}")) if doing is Doing.BLOCKED else ""
    return Diagnosis(doing, where, cpu, _stack_of(pid) if asks else "")


def of_thread(tag: str, frame: FrameType | None = None) -> Diagnosis:
    """Find out what the task under the lease *tag* is doing in this process.

    Args:
        tag: Names the lease; the thread is the one whose frames carry it.
        frame: The task's own, where it is not a thread.
    """
    if frame is not None:
        return Diagnosis(Doing.UNKNOWN, stack=_formatted(frame))
    for ident, top in sys._current_frames().items():  # noqa: SLF001  (documented)
        if _runs(top, tag):
            doing, cpu = _doing(Path(f"/proc/self/task/{_native_id(ident)}"))
            return Diagnosis(doing, cpu=cpu, stack=_formatted(top))
    return Diagnosis(Doing.UNKNOWN)


def _free_signal() -> int | None:
    """Return a signal that nothing in this process handles, or None."""
    if not (hasattr(faulthandler, "register") and hasattr(signal, "SIGRTMAX")):
        return None
    used = _signals("self", "SigCgt") | _signals("self", "SigIgn")
    candidates = range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1)
    return next((each for each in candidates if not used >> (each - 1) & 1), None)


def _signals(pid: int | str, line: str) -> int:
    """Return a signal set from a process's status, a bit a signal; -1 or 0 if it is unknown."""
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/status").read_text().splitlines():
            if each.startswith(f"{line}:"):
                return int(each.partition(":")[2], 16)
    return -1 if pid == "self" else 0


def _stack_of(pid: int) -> str:
    try:
        path, number = _offer(pid)
        if not _signals(pid, "SigCgt") >> (number - 1) & 1:
            return ""  # the signal would end it
        before = path.stat().st_size
        os.kill(pid, number)
        _await_growth(path, before)
        with path.open("rb") as file:
            file.seek(before)
            return _of_task(file.read(LONGEST_STACK).decode(errors="replace"))
    except OSError:  # no offer, not ours to ask, or gone meanwhile
        return ""


def _of_task(stack: str) -> str:
    """Remove Celery's own frames, the outermost of each thread, from a stack."""
    kept, outside = [], False
    for line in stack.rstrip().splitlines():
        outside = line.startswith("  ") and (outside or _BEFORE_TASK in line)
        if not outside:
            kept.append(line)
    return "\n".join(kept)


def _offer(pid: int) -> tuple[Path, int]:
    """Return the file into which a process writes its stack, and the signal that makes it do so.

    Raises:
        FileNotFoundError: The process offers none.
    """
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            name = str(each.readlink())
            if _OFFER in name:
                return each, int(name.partition(_OFFER)[2].split()[0])
    raise FileNotFoundError(_OFFER)


def _await_growth(path: Path, before: int) -> None:
    """Wait until a file has grown and then stopped growing; at most ``STACK_TIMEOUT``."""
    clock, rest, last = SystemClock(), threading.Event(), before
    ends = clock.now() + STACK_TIMEOUT
    while clock.now() < ends:
        rest.wait(STACK_LOOK)
        size = path.stat().st_size
        if size == last > before:
            return
        last = size


def _doing(directory: Path) -> tuple[Doing, float]:
    """Sample a process or thread for a moment; return its state, and its share of a processor."""
    clock = SystemClock()
    try:
        began, (state, before) = clock.now(), _stat(directory)
        if state in "Tt":
            return Doing.STOPPED, 0.0
        if state in "ZXx":
            return Doing.GONE, 0.0
        threading.Event().wait(SAMPLE)
        state_now, after = _stat(directory)
        cpu = (after - before) / (clock.now() - began)
    except FileNotFoundError:
        return (Doing.GONE if Path("/proc/self/stat").exists() else Doing.UNKNOWN), 0.0
    except OSError:
        return Doing.UNKNOWN, 0.0
    # On a crowded machine a busy process may get little processor time, and still be runnable.
    busy = cpu >= BUSY_SHARE or (state == state_now == "R")
    return (Doing.BUSY if busy else Doing.BLOCKED), cpu


def _stat(directory: Path) -> tuple[str, float]:
    """Return the state and the used processor time in seconds."""
    text = (directory / "stat").read_text()
    # The command's name, in parentheses, may hold anything; the rest follows it.
    fields = text[text.rindex(")") + 2 :].split()
    ticks = int(fields[_UTIME]) + int(fields[_UTIME + 1])
    return fields[_STATE], ticks / _CLOCK_TICKS


def _where(directory: Path) -> str:
    """Return the kernel function in which a process sleeps; "" if the kernel does not show it."""
    with suppress(OSError):
        name = (directory / "wchan").read_text().strip()
        return "" if name == "0" else name
    return ""


def _runs(frame: FrameType | None, tag: str) -> bool:
    """Whether a stack is that of the task under a lease: one frame has its ticket."""
    while frame is not None:
        ticket = frame.f_locals.get("ticket")
        if isinstance(ticket, Ticket) and ticket.tag == tag:
            return True
        frame = frame.f_back
    return False


def _native_id(ident: int) -> int | None:
    if ident == threading.main_thread().ident:
        return os.getpid()  # threading keeps the number from before a fork, such as --detach's
    return next((each.native_id for each in threading.enumerate() if each.ident == ident), None)


def _formatted(frame: FrameType) -> str:
    lines = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=50)
    return _of_task(
        "\n".join(f'  File "{each.filename}", line {each.lineno} in {each.name}' for each in lines)
    )
