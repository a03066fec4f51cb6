"""A pool without an event loop, whose processes die where it does not look."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from billiard.exceptions import Terminated, WorkerLostError
from celery.concurrency import prefork

from celery_lease.celery_patches.abandoned_locks import free_abandoned_locks
from celery_lease.celery_patches.unnoticed_deaths import notice_all_deaths
from harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it needs files in memory")


class TaskPool(prefork.TaskPool):
    """Celery's, with an attribute of its own."""


@pytest.fixture
def pool() -> Iterator[Any]:
    """A pool of two processes that waits for half a second until a job counts as lost."""
    for _ in range(2):
        notice_all_deaths(TaskPool)  # once is enough
        free_abandoned_locks(TaskPool)  # or it does not stop after its idle processes were killed
    assert len(TaskPool.BlockingPool.__mro__) == len(prefork.TaskPool.BlockingPool.__mro__) + 4
    pool = TaskPool.BlockingPool(2, context=None, lost_worker_timeout=0.5)
    yield pool
    pool.terminate()


@pytest.fixture
def reads(pool: Any) -> threading.Event:
    """Whether the pool reads what its processes have sent; set at first."""
    reads = threading.Event()
    reads.set()
    handler, recorded = pool._result_handler, pool._result_handler.on_state_change

    def read(task: Any) -> None:
        reads.wait(60)
        recorded(task)

    handler.on_state_change = read
    assert pool.apply_async(abs, (-1,)).get(30) == 1  # from now on it waits with this one
    return reads


def has_gone(pool: Any, pid: int) -> bool:
    return pid not in {each.pid for each in pool._pool}


def error_of(job: Any) -> Exception:
    """Return the error with which a job ended."""
    job.wait(30)
    assert job.ready(), "it has no end"
    error: Exception = job._value.exception.exc
    return error


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("terminated", "error"), [(False, WorkerLostError), (True, Terminated)], ids=["died", "ended"]
)
def test_a_process_that_is_gone_before_its_start_is_read(
    pool: Any, reads: threading.Event, terminated: bool, error: type[Exception]
) -> None:
    """Removed: _find_forgotten; failed with: it has no end."""
    before = {each.pid: each for each in pool._pool}
    reads.clear()
    job = pool.apply_async(kill_oneself)
    gone = eventually(lambda: [pid for pid in before if has_gone(pool, pid)], 30)
    before[gone[0]]._job_terminated = terminated
    reads.set()
    assert type(error_of(job)) is error


def test_a_process_that_dies_before_it_reports_a_start(pool: Any) -> None:
    """Removed: _find_unreported; failed with: it has no end."""
    before = {each.pid for each in pool._pool}
    for pid in before:
        os.kill(pid, signal.SIGSTOP)
    for pid in before:  # one that is stopped a moment later would read the job, or half of it
        eventually(lambda pid=pid: psutil.Process(pid).status() == psutil.STATUS_STOPPED, 30)
    job = pool.apply_async(abs, (-1,))
    pool._inqueue._reader.recv()  # as a process reads it that then dies
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert "SIGKILL" in str(error_of(job))
    assert not pool._cache
    assert pool.apply_async(abs, (-2,)).get(30) == 2


def test_a_job_that_waits_for_a_process_is_not_lost(pool: Any) -> None:
    """Removed: the look into the queue; failed with: WorkerLostError."""
    jobs = [pool.apply_async(time.sleep, (seconds,)) for seconds in (3, 60, 3)]
    victim = eventually(jobs[1].worker_pids, 30)
    waits = pool.apply_async(abs, (-1,))
    os.kill(victim[0], signal.SIGKILL)
    assert waits.get(30) == 1
    assert type(error_of(jobs[1])) is WorkerLostError
