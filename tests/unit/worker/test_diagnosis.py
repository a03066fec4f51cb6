"""What can be told of a silent task: real processes and threads, looked at from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from celery_lease.core.ticket import Ticket
from celery_lease.worker import diagnosis
from celery_lease.worker.diagnosis import Diagnosis, Doing
from harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

OFFER = "from celery_lease.worker.diagnosis import offer_stack; offer_stack()\n"
BUSY = "def burn():\n    while True: pass\nprint('on', flush=True)\nburn()"
BLOCKED = "import sys\ndef wait(): sys.stdin.read()\nprint('on', flush=True)\nwait()"


class Child:
    """A Python process that has begun to do what its code says."""

    def __init__(self, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout
        assert self.process.stdout.readline() == b"on\n"
        self.pid = self.process.pid

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def children() -> Iterator[list[Child]]:
    """A place for processes that end with the test."""
    children: list[Child] = []
    yield children
    for each in children:
        each.close()


def test_a_busy_process_is_told_with_its_stack(children: list[Child]) -> None:
    """Also while it holds the interpreter and never returns to its loop."""
    children.append(Child(OFFER + BUSY))
    # On a crowded machine it may not run at all in one sample.
    seen = eventually(lambda: (each := diagnosis.of_process(children[0].pid)).cpu > 0 and each, 30)
    assert seen.doing is Doing.BUSY
    assert "in burn" in seen.stack
    assert "busy on CPU" in str(seen)


def test_a_blocked_process_is_told_with_its_stack_and_lives_on(children: list[Child]) -> None:
    """To be asked does it no harm, twice."""
    children.append(Child(OFFER + BLOCKED))
    for _ in range(2):
        seen = diagnosis.of_process(children[0].pid)
        assert seen.doing is Doing.BLOCKED
        assert seen.stack.count("in wait") == 1
    assert children[0].process.poll() is None


def test_a_stopped_process_is_told_and_not_asked(children: list[Child]) -> None:
    """It could not answer; the signal would wait for it."""
    children.append(Child(OFFER + BLOCKED))
    os.kill(children[0].pid, signal.SIGSTOP)
    os.waitpid(children[0].pid, os.WUNTRACED)
    assert diagnosis.of_process(children[0].pid) == Diagnosis(Doing.STOPPED)


def test_a_process_that_offers_no_stack_is_not_harmed(children: list[Child]) -> None:
    """A signal that it does not catch would end it."""
    children.append(Child(BLOCKED))
    seen = diagnosis.of_process(children[0].pid)
    assert (seen.doing, seen.stack) == (Doing.BLOCKED, "")
    assert children[0].process.poll() is None


def test_a_process_that_took_back_its_offer_is_not_harmed(children: list[Child]) -> None:
    """The task put the signal back to what ends a process."""
    undo = "import signal\nfor n in range(signal.SIGRTMIN, signal.SIGRTMAX):\n"
    children.append(Child(OFFER + undo + "    signal.signal(n, signal.SIG_DFL)\n" + BLOCKED))
    assert diagnosis.of_process(children[0].pid).stack == ""
    assert children[0].process.poll() is None


def test_a_signal_of_the_task_s_own_is_not_taken(children: list[Child]) -> None:
    """A handler that was there first stays."""
    own = (
        "import signal\nsignal.signal(signal.SIGRTMAX - 1, lambda *_: print('mine', flush=True))\n"
    )
    children.append(Child(own + OFFER + BLOCKED))
    assert "in wait" in diagnosis.of_process(children[0].pid).stack
    os.kill(children[0].pid, signal.SIGRTMAX - 1)
    assert children[0].process.stdout
    assert children[0].process.stdout.readline() == b"mine\n"


def test_a_process_that_is_gone_is_told() -> None:
    """Also one that never was."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        assert diagnosis.of_process(child.pid).doing is Doing.GONE


def test_the_thread_of_a_task_is_found_by_its_lease() -> None:
    """Among others, by the ticket that one of its frames has."""
    began, go_on = threading.Event(), threading.Event()

    def runs_leased(ticket: Ticket) -> None:
        began.set()
        go_on.wait()
        del ticket

    threads = [
        threading.Thread(target=runs_leased, args=(Ticket(tag=tag),), daemon=True) for tag in "ab"
    ]
    for thread in threads:
        thread.start()
    began.wait()
    seen = diagnosis.of_thread("b")
    other = diagnosis.of_thread("c")
    go_on.set()
    assert seen.doing is Doing.BLOCKED
    assert "in runs_leased" in seen.stack
    assert other == Diagnosis(Doing.UNKNOWN)


FORKED = """
import os, sys
from celery_lease.core.ticket import Ticket
from celery_lease.worker import diagnosis
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
def runs_leased(ticket):
    return diagnosis.of_thread("a").doing
os._exit(runs_leased(Ticket(tag="a")) is diagnosis.Doing.GONE)
"""


def test_the_main_thread_of_a_forked_process_is_there() -> None:
    """As in a worker that was detached. Failed with: gone, so that it was never ended."""
    assert subprocess.run([sys.executable, "-c", FORKED], check=False).returncode == 0


def test_a_stack_ends_where_the_task_s_code_began() -> None:
    """Celery's own frames below are the same for every task."""
    stack = """\
Thread 0x1 (most recent call first):
  File "task.py", line 1 in work
  File "/x/celery/app/trace.py", line 2 in trace_task
  File "/x/billiard/pool.py", line 3 in workloop

Thread 0x2 (most recent call first):
  File "thread.py", line 4 in run"""
    kept = diagnosis._of_task(stack)
    assert "work" in kept
    assert "run" in kept
    assert "trace_task" not in kept
    assert "workloop" not in kept
