"""What a pool of processes remembers of its jobs and processes when a connection is lost."""

from __future__ import annotations

import os
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import celery
import pytest
from billiard import pool as billiard_pool
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool
from kombu.asynchronous import Hub, set_event_loop

from celery_lease.celery_patches import forgotten_jobs, unheard_starts, unwatched_processes

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.compat


class Processes:
    """Celery's pool of processes, without any; its ``flush`` is Celery's own."""

    def __init__(self) -> None:
        self.inner: Any = object.__new__(AsynPool)
        self.inner.__dict__.update(
            _state=billiard_pool.RUN,
            synack=False,
            _cache={},
            outbound_buffer=deque(),
            _active_writers=set(),
            _active_writes=set(),
            _busy_workers=set(),
            maintain_pool=lambda: None,
            _pool=[],
        )
        pool: Any = object.__new__(TaskPool)
        pool._pool, pool.flush = self.inner, self.inner.flush
        self.ended: list[object] = []
        self.pool = pool
        forgotten_jobs.keep_running_jobs(SimpleNamespace(pool=pool))
        unheard_starts.keep_sent_jobs(SimpleNamespace(pool=pool))
        unwatched_processes.watch_again(SimpleNamespace(pool=pool))

    def job(self, *, accepted: bool, inbox: int = 0, alive: bool = True) -> Any:
        job = billiard_pool.ApplyResult(self.inner._cache, self.ended.append)
        if accepted:
            job._ack(None, 0.0, 1, None)
        job._write_to = SimpleNamespace(inqW_fd=inbox, _is_alive=lambda: alive)
        if inbox:
            self.inner._busy_workers.add(inbox)
        return job


def test_a_pool_hears_of_what_ran_when_the_connection_was_lost() -> None:
    """What it has not begun is forgotten: that message goes back."""
    processes = Processes()
    runs, waits = processes.job(accepted=True), processes.job(accepted=False)
    processes.pool.flush()
    assert runs._job in processes.inner._cache
    assert waits._job not in processes.inner._cache
    runs._set(None, (True, "result"))
    assert processes.ended == ["result"]
    assert processes.inner._cache == {}


def test_a_process_that_runs_a_task_gets_no_second_one_after_a_lost_connection() -> None:
    """It would wait there while another process is idle; of one that is gone nothing is kept."""
    processes = Processes()
    processes.job(accepted=True, inbox=7)
    processes.job(accepted=True, inbox=8, alive=False)
    processes.job(accepted=False, inbox=9)
    processes.pool.flush()
    assert processes.inner._busy_workers == {7}


def test_a_job_that_ends_while_its_pool_forgets_is_not_remembered() -> None:
    """Else its entry would stay for good."""
    processes = Processes()
    runs = processes.job(accepted=True)
    processes.inner.maintain_pool = lambda: runs._set(None, (True, "result"))
    processes.pool.flush()
    assert processes.inner._cache == {}


def test_a_closing_pool_remembers_what_a_process_has_got() -> None:
    """It may run by now, although its process's word for that was not read yet."""
    processes = Processes()
    sent = processes.job(accepted=False)
    processes.inner._state = billiard_pool.CLOSE
    processes.pool.flush()
    assert sent._job in processes.inner._cache
    sent._ack(None, 0.0, 1, None)
    sent._set(None, (True, "result"))
    assert processes.ended == ["result"]
    assert processes.inner._cache == {}


def test_a_closing_pool_sends_the_rest_of_what_it_has_begun_to_send() -> None:
    """A process would wait for it for ever, and the worker for the process."""

    def write() -> Iterator[None]:
        yield
        sent.append("rest")

    sent: list[str] = []
    processes, writing = Processes(), write()
    job, (outbox, inbox) = processes.job(accepted=False), os.pipe()
    next(writing)
    job._writer = lambda: writing
    job._write_to.inq = SimpleNamespace(_writer=inbox)
    job._write_to.sentinel = outbox
    processes.inner._active_writers.add(writing)
    processes.inner._state = billiard_pool.CLOSE
    try:
        processes.pool.flush()
    finally:
        os.close(outbox)
        os.close(inbox)
    assert sent == ["rest"]
    assert not processes.inner._active_writers


def test_a_process_that_celery_forgot_to_watch_ends_no_worker() -> None:
    """It is watched again from the next connection on, where stock Celery fails by it."""
    hub, processes = Hub(), Processes()
    end, ours = os.pipe()
    process = SimpleNamespace(_sentinel_poll=None, _popen=SimpleNamespace(sentinel=end))
    processes.inner._pool.append(process)
    try:
        with pytest.raises((ValueError, AttributeError)):
            processes.inner._track_child_process(process, hub)
        processes.pool.flush()
        processes.inner._track_child_process(process, hub)
        assert list(hub.readers) == [process._sentinel_poll]
        processes.inner._untrack_child_process(process, hub)
    finally:
        hub.close()
        os.close(end)
        os.close(ours)
        set_event_loop(None)


def test_a_pool_that_was_stopped_has_nothing_to_forget() -> None:
    """A cold shutdown's handler stops it before the consumer closes."""
    processes = Processes()
    processes.pool._pool = None
    processes.pool.flush()
    assert processes.inner._cache == {}


def test_celery_remembers_what_runs_from_5_7_on() -> None:
    """There nothing is repaired any more, and the tests above hold for Celery alone."""
    assert forgotten_jobs.is_needed() == (celery.VERSION < (5, 7))


def test_other_pools_are_left_as_they_are() -> None:
    """They have no memory of their own."""
    for name in ("solo", "thread", "gevent"):
        pool: Any = type("TaskPool", (), {"__module__": f"celery.concurrency.{name}"})()
        pool.flush = flush = object()
        forgotten_jobs.keep_running_jobs(SimpleNamespace(pool=pool))
        unwatched_processes.watch_again(SimpleNamespace(pool=pool))
        assert pool.flush is flush
