"""A pool of processes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from billiard import get_start_method
from celery.apps.worker import Worker

from celery_lease.worker import diagnosis
from celery_lease.worker.pools.base import Pool
from celery_lease.worker.processes import is_gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.worker import WorkController

    from celery_lease.worker.entries import LeaseEntry

MODULE = "celery.concurrency.prefork"
#: Seconds that a killed process has to end.
DEATH = 1.0


class Prefork(Pool):
    """Each task has a process, which can be killed."""

    alone = goes_on = ends_itself = True

    def diagnose(self, entry: LeaseEntry) -> diagnosis.Diagnosis:
        return super().diagnose(entry) if entry.pid is None else diagnosis.of_process(entry.pid)

    def end(self, entry: LeaseEntry, release: Callable[[], None]) -> bool:
        """Kill the task's process, and release the message after its end."""
        gone = False
        entry.release = release
        if entry.pid is not None:
            self.celery_pool.terminate_job(entry.pid, signal.SIGKILL)
            gone = is_gone(entry.pid, DEATH)
        release()
        return gone


def forks_its_pool(worker: WorkController) -> bool:
    """Whether this process is a worker of its own, with a prefork pool."""
    pool: type = worker.pool_cls  # type: ignore[attr-defined]
    return isinstance(worker, Worker) and pool.__module__ == MODULE


def inherits_memory(worker: WorkController) -> bool:
    """Whether this worker's tasks run in forks of this process, or in the process itself."""
    pool: type = worker.pool_cls  # type: ignore[attr-defined]
    if pool.__module__ != MODULE:
        return True
    method = getattr(worker, "pool_start_method", "fork")  # 5.5 has no choice
    return bool(method == "fork" and get_start_method() == "fork")


def wait_for_process(pool: Any) -> None:
    """Wait until a process is free, where ``apply_async`` would: a waiting task has not begun.

    Without the event loop a prefork pool takes a lock (billiard's ``Pool._putlock``) for each task.
    """
    if getattr(pool, "putlocks", False) and type(pool).__module__ == MODULE:
        lock = getattr(getattr(pool, "_pool", None), "_putlock", None)
        if lock is not None:
            lock.acquire()
            lock.release()
