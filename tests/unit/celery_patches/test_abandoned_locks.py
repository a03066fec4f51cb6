"""A pool without an event loop, whose idle processes are killed."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from celery.concurrency import prefork

from celery_lease.celery_patches.abandoned_locks import free_abandoned_locks
from harness.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it needs files in memory")


class TaskPool(prefork.TaskPool):
    """Celery's, with an attribute of its own."""


def test_a_pool_goes_on_and_stops_after_any_of_its_idle_processes_was_killed() -> None:
    """One of them held the lock of the queue of jobs.

    Removed: the lock; failed with: no result within 30 s.
    """
    for _ in range(2):
        free_abandoned_locks(TaskPool)  # once is enough
    assert len(TaskPool.BlockingPool.__mro__) == len(prefork.TaskPool.BlockingPool.__mro__) + 2
    pool = TaskPool.BlockingPool(2, context=None)
    try:
        assert pool.apply_async(abs, (-1,)).get(30) == 1
        before = {each.pid for each in pool._pool}
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: len({each.pid for each in pool._pool} - before) == 2, 30)
        assert pool.apply_async(abs, (-2,)).get(30) == 2
        pool.close()
        pool.join()
    finally:
        pool.terminate()
