"""What a process that stands still has to say: its threads, its greenlets, its children.

A Python handler tells more, but runs only where Python does; :mod:`faulthandler` writes what each
thread does in any case; where in the kernel a thread waits is the kernel's to tell.
"""

from __future__ import annotations

import faulthandler
import gc
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from celery.signals import worker_ready

if TYPE_CHECKING:
    from types import FrameType

    from harness.processes import LocalProcess

#: By Python, and without it.
ASKED, WRITTEN = signal.SIGUSR1, signal.SIGUSR2
#: Seconds that they are given: nothing says when they are done, or whether they can be.
PATIENCE = 1.0


def offer() -> None:
    """Let this process, and its children, tell what they do."""
    if threading.current_thread() is threading.main_thread():
        faulthandler.register(WRITTEN, all_threads=True)
        worker_ready.connect(_tell_at_a_signal)  # Celery's own handler knows no greenlets


def of(process: LocalProcess) -> str:
    """Have a process and its children write where they are; return the log, and what is seen."""
    family = [*process.family()]
    process.send(ASKED)
    time.sleep(PATIENCE)
    for each in family:
        with suppress(psutil.Error):
            each.send_signal(WRITTEN)
    time.sleep(PATIENCE)
    return "\n".join([process.log, *(_seen(each) for each in family)])


def _seen(process: psutil.Process) -> str:
    waits = []
    for thread in Path(f"/proc/{process.pid}/task").glob("*"):
        with suppress(OSError):
            waits.append(f"{thread.name} in {(thread / 'wchan').read_text()}")
    with suppress(psutil.Error):
        return f"process {process.pid}, {process.status()}, {process.cmdline()[-1:]}: {waits}"
    return f"process {process.pid} is gone"


def _tell_at_a_signal(**_: Any) -> None:
    signal.signal(ASKED, _tell)


def _tell(_number: int, _frame: FrameType | None) -> None:
    frames = {f"thread {number}": each for number, each in sys._current_frames().items()}
    greenlet = getattr(sys.modules.get("greenlet"), "greenlet", None)
    if greenlet is not None:
        found = [each for each in gc.get_objects() if isinstance(each, greenlet) and each.gr_frame]
        frames |= {f"{each!r}": each.gr_frame for each in found}
    for name, frame in frames.items():
        sys.stderr.write(f"--- {name}\n{''.join(traceback.format_stack(frame))}\n")
    sys.stderr.flush()
