"""The line of requests that wait for a pool of processes, with Celery's own parts."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError
from celery.worker import WorkController
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from celery_lease.celery_patches import semaphore_recursion


class Line:
    """A worker with one process and a long line, none of which is let in."""

    def __init__(self) -> None:
        self.tried = 0
        semaphore = LaxBoundedSemaphore(1)
        self.worker: Any = SimpleNamespace(
            pool=None, _quick_acquire=semaphore.acquire, _quick_release=semaphore.release
        )
        self.worker._process_task = partial(WorkController._process_task, self.worker)
        self.semaphore = semaphore

    def run(self) -> int:
        """Let the task that runs end; return how many of the line were tried."""
        self.semaphore.acquire(lambda: None)
        request = SimpleNamespace(execute_using_pool=self._refuse)
        for _ in range(sys.getrecursionlimit()):
            WorkController._process_task_sem(self.worker, request)  # type: ignore[arg-type]
        self.semaphore.release()
        return self.tried

    def _refuse(self, _pool: object) -> None:
        self.tried += 1
        raise TaskRevokedError


def test_a_long_line_of_requests_that_are_not_let_in_comes_to_its_end() -> None:
    """And the process is free afterwards."""
    line = Line()
    semaphore_recursion.flatten(line.worker)
    semaphore_recursion.flatten(line.worker)
    assert line.run() == sys.getrecursionlimit()
    assert line.semaphore.value == 1


def test_celerys_own_line_needs_this() -> None:
    """Else this may go."""
    with pytest.raises(RecursionError):
        Line().run()


def test_a_pool_without_a_line_is_left_alone() -> None:
    """As those of threads."""
    worker = SimpleNamespace()
    semaphore_recursion.flatten(worker)
    assert not vars(worker)
