"""A pool of greenlets, of gevent or eventlet."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_lease.worker import diagnosis
from celery_lease.worker.pools.base import Pool

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from celery_lease.worker.entries import LeaseEntry


class Green(Pool):
    """Each task has a greenlet, whose number Celery uses as a process id."""

    def lives(self, number: int) -> bool:
        """Whether a task's greenlet is in the pool's map, which holds it until it has ended."""
        return number in self.celery_pool._pool_map  # noqa: SLF001

    def diagnose(self, entry: LeaseEntry) -> diagnosis.Diagnosis:
        greenlet = getattr(self.celery_pool, "_pool_map", {}).get(entry.pid)
        frame = getattr(greenlet, "gr_frame", None)
        return diagnosis.of_thread(entry.lease.claim.tag, frame)

    def end(self, entry: LeaseEntry, release: Callable[[], None]) -> bool:
        """Kill the task's greenlet, after its message was released.

        Celery counts the task of a killed greenlet as a success, and would acknowledge it.
        """
        release()
        if entry.pid is None:
            return False
        self.celery_pool.terminate_job(entry.pid)
        return True

    def _frame_of_this(self) -> Callable[[], FrameType | None]:
        this: Any = import_module("greenlet").getcurrent()  # only installed where it is needed
        return lambda: this.gr_frame
