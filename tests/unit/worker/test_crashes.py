"""The stack of a task process that crashed: real processes, forked from one that has a desk."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from celery_lease.worker import crashes
from celery_lease.worker.crashes import Desk
from harness.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no files in memory")

#: Forks a child that does what is in between, and prints what the parent learns of its end.
PLAY = """
import ctypes, faulthandler, os, signal, sys, threading
from celery_lease.worker import crashes

def crash():
    ctypes.string_at(0)

own = open(sys.argv[1], "w")
crashes.open_desk()
pid = os.fork()
if not pid:
    {child}
    os._exit(0)
os.waitpid(pid, 0)
print(crashes.stack_of(pid, "{cause}"))
"""


def play(path: Path, child: str, cause: str = "SIGSEGV", **env: str) -> str:
    """Return what a parent learns of a child's crash."""
    code = PLAY.format(child=child, cause=cause)
    command = [sys.executable, "-c", code, str(path / "own")]
    env = {**{name: each for name, each in os.environ.items() if "FAULT" not in name}, **env}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=env)
    return done.stdout.strip()


def test_a_crash_leaves_the_stack_of_its_thread_first(tmp_path: Path) -> None:
    """However soon it comes: nothing had to be looked up while the process lived."""
    waits = "threading.Thread(target=threading.Event().wait, daemon=True).start(); "
    stack = play(tmp_path, f"crashes.offer(); {waits}crash()")
    lines = stack.splitlines()
    assert lines[0] == "Segmentation fault"
    assert lines[2].startswith("Current thread")
    assert "in crash" in stack.partition("\n\nThread")[0]
    assert "in wait" in stack


def test_an_abort_leaves_a_stack(tmp_path: Path) -> None:
    """As of an assertion in C."""
    assert "Aborted" in play(tmp_path, "crashes.offer(); os.abort()", "SIGABRT")


@pytest.mark.parametrize(
    "child",
    [
        "faulthandler.enable(own); crashes.offer(); crash()",
        "crashes.offer(); faulthandler.enable(own); crash()",
    ],
    ids=["before", "after"],
)
def test_a_user_s_own_faulthandler_stays(tmp_path: Path, child: str) -> None:
    """Whoever turns it on, and when: it writes where that one said."""
    assert play(tmp_path, child) == ""
    assert "in crash" in (tmp_path / "own").read_text()


def test_an_interpreter_s_faulthandler_stays(tmp_path: Path) -> None:
    """It was turned on for all processes, to write to the error output."""
    assert play(tmp_path, "crashes.offer(); crash()", PYTHONFAULTHANDLER="1") == ""


def test_a_handler_of_a_crash_s_signal_stays(tmp_path: Path) -> None:
    """A library may handle faults of its own, and mend them."""
    own = "signal.signal(signal.SIGBUS, lambda *_: None)"
    assert play(tmp_path, f"{own}; crashes.offer(); crash()") == ""


#: Crashes once it is told to; nothing is inherited.
SPAWNED = """
import ctypes
from celery_lease.worker import crashes

def crash():
    input()
    ctypes.string_at(0)

crashes.offer()
crash()
"""


def test_a_spawned_process_s_file_is_found_while_it_lives() -> None:
    """It has inherited no socket to send it by."""
    env = {name: each for name, each in os.environ.items() if "FAULT" not in name}
    desk = Desk(looks=True)
    with subprocess.Popen(
        [sys.executable, "-c", SPAWNED], stdin=subprocess.PIPE, text=True, env=env
    ) as child:

        def is_found() -> bool:
            desk.collect([child.pid])
            return child.pid in desk._files

        eventually(is_found, 30)
        child.communicate("\n", timeout=30)
    stack = desk.stack_of(child.pid)
    assert stack.startswith("Segmentation fault")
    assert "in crash" in stack
    desk.close()


def test_a_process_that_was_killed_has_no_stack(tmp_path: Path) -> None:
    """Also if a child of its own crashed before, with the same file."""
    child = "crashes.offer(); os.fork() or crash(); os.wait(); os.kill(os.getpid(), 9)"
    assert play(tmp_path, child, "SIGKILL, perhaps out of memory") == ""


def test_processes_that_came_and_went_leave_nothing_open() -> None:
    """A pool may replace a process after each task."""
    process = psutil.Process()
    before = process.num_fds()
    desk = Desk()
    for _ in range(3):
        fd = os.memfd_create("crash")
        pid = os.fork()
        if not pid:
            desk.leave(fd)
            os._exit(0)
        os.close(fd)
        os.waitpid(pid, 0)
        desk.collect()
    assert process.num_fds() == before + 2
    desk.close()
    assert process.num_fds() == before


def test_a_desk_that_is_full_takes_nothing_more() -> None:
    """And nobody waits: such a process leaves no stack."""
    desk = Desk()
    fd = os.memfd_create("crash")
    assert not all(desk.leave(fd) for _ in range(2000))
    desk.collect()
    os.close(fd)
    desk.close()


def test_without_a_desk_there_is_no_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a worker that is a part of a program."""
    monkeypatch.setattr(crashes, "_desks", [])
    crashes.offer()
    crashes.collect([])
    assert crashes.stack_of(os.getpid(), "SIGSEGV") == ""
