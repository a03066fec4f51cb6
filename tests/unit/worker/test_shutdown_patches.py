"""Celery's handler of a soft and a cold shutdown, and what it finds in the place of its steps."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery.apps import worker as worker_app
from celery.utils import log
from celery.worker import state
from celery.worker.consumer import Consumer

from celery_lease.worker import pools, shutdown_patches
from celery_lease.worker.shutdown import Shutdown
from unit.fake_broker import Bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POOLS = {
    name: f"celery.concurrency.{name}"
    for name in ("prefork", "thread", "solo", "gevent", "eventlet")
}


class Stage(Bench):
    """A worker of stand-ins whose signal handler is Celery's own."""

    def __init__(self, kind: str, soft: float) -> None:
        super().__init__()
        self.did: list[str] = []
        note = self.did.append
        pool: Any = type("TaskPool", (), {"__module__": POOLS[kind], "is_green": False})()
        pool.stop, pool.terminate = lambda: note("stop"), lambda: note("terminate")
        consumer: Any = SimpleNamespace(
            app=SimpleNamespace(conf=SimpleNamespace(worker_soft_shutdown_timeout=soft)),
            pool=pool,
            task_consumer=type("Consumer", (), {"cancel": lambda _: note("ask the broker")})(),
        )
        (name,) = (each for each in shutdown_patches.CANCEL if hasattr(Consumer, each))
        setattr(consumer, name, self.cancel)
        self.worker: Any = SimpleNamespace(
            consumer=consumer, wait_for_soft_shutdown=lambda: note("Celery's wait")
        )
        consumer.controller = self.worker
        self.pool, self.consumer = pool, consumer
        adapter: Any = pools.adapter(consumer)
        adapter.end, adapter.hangs_in = lambda _, __: True, lambda: ""
        adapter.leave = adapter.failed = lambda: None
        self.shutdown = Shutdown(self.leases, adapter)
        self.leases.hurry = self.shutdown.hurry
        self.can_cancel = True
        shutdown_patches.tame_cold_shutdown(
            consumer, self.leases, self.shutdown, self.shutdown.ask, adapter
        )

    def cancel(self) -> None:
        self.did.append("cancel")
        if not self.can_cancel:
            raise NotImplementedError

    def signal(self) -> None:
        """Do what Celery does when the signal comes."""
        with log.in_sighandler():
            worker_app.on_cold_shutdown(self.worker)

    def pressed(self, seconds: float) -> int:
        """Let time pass and the keeper look; return what the task has been told."""
        self.clock.advance(seconds)
        self.shutdown.run_once()
        (held,) = self.leases.running()
        return self.flags_of(held) or 0

    def second_signal(self) -> None:
        with log.in_sighandler():
            worker_app.during_soft_shutdown(self.worker)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stage]]:
    """Return a maker of stages; no signal handler is installed."""
    stages: list[Stage] = []

    def make(kind: str, soft: float = 0.0) -> Stage:
        stages.append(Stage(kind, soft))
        return stages[-1]

    monkeypatch.setattr(worker_app, "install_worker_term_hard_handler", lambda *_, **__: None)
    for name in ("should_terminate", "active_requests"):
        monkeypatch.setattr(state, name, None if name == "should_terminate" else set())
    yield make
    for each in stages:
        each.leases.close()


@pytest.mark.parametrize("kind", ["thread", "solo", "gevent", "eventlet"])
def test_a_pool_is_stopped_outside_of_the_handler(stage: Callable[..., Stage], kind: str) -> None:
    """In it that could wait for a lock of the interrupted code, or for the task beneath it."""
    worker = stage(kind)
    worker.signal()
    assert worker.did == ["cancel"]
    assert worker.leases.intake.stopping
    worker.pool.terminate()
    worker.pool.terminate()
    assert worker.did == ["cancel", "stop", "terminate", "terminate"]


def test_a_pool_of_processes_is_stopped_as_ever(stage: Callable[..., Stage]) -> None:
    """Billiard wants the main thread for that, and kills what does not end."""
    worker = stage("prefork")
    worker.signal()
    assert worker.did == ["cancel", "stop"]


@pytest.mark.parametrize("kind", list(POOLS))
def test_the_broker_is_asked_nothing_in_the_handler(stage: Callable[..., Stage], kind: str) -> None:
    """It may interrupt a question in the middle of its answer; outside of it all is as ever.

    Also where Celery asks nothing there, before 5.7; and nothing more is taken by then.
    """
    worker = stage(kind)
    worker.signal()
    assert "ask the broker" not in worker.did
    assert not worker.leases.intake.is_open
    worker.consumer.task_consumer.cancel()
    assert worker.did.count("ask the broker") == 1


def test_a_plain_task_in_a_thread_keeps_no_handler_from_its_end(
    stage: Callable[..., Stage],
) -> None:
    """Nothing can cancel a thread, and Celery's attempt is an error; leased tasks are told."""
    worker = stage("thread")
    worker.can_cancel = False
    worker.run()
    worker.signal()
    assert worker.pressed(0) != 0


@pytest.mark.parametrize("kind", ["thread", "solo"])
def test_a_warm_shutdown_stops_its_pool_at_once(stage: Callable[..., Stage], kind: str) -> None:
    """Also after a SIGHUP, which makes Celery believe for good that it is in a handler."""
    worker = stage(kind)
    with log.in_sighandler():
        worker.pool.stop()
    assert worker.did == ["stop"]


@pytest.mark.parametrize("kind", ["solo", "gevent", "eventlet"])
def test_a_soft_shutdown_waits_in_no_handler_that_tasks_wait_for(
    stage: Callable[..., Stage], kind: str
) -> None:
    """Its time is set, and runs out elsewhere; a second signal ends it early."""
    worker = stage(kind, soft=5.0)
    worker.run()
    worker.signal()
    assert worker.did == []
    assert worker.pressed(0) == worker.pressed(4.9) == 0
    assert worker.pressed(0.2) != 0
    worker.second_signal()
    assert worker.did == ["cancel"]


@pytest.mark.parametrize("kind", ["thread", "prefork"])
def test_a_soft_shutdown_ends_when_nothing_runs_any_more(
    stage: Callable[..., Stage], kind: str
) -> None:
    """Though the interrupted code holds the table's lock, which the keeper's thread needs."""
    worker = stage(kind, soft=60.0)
    worker.run()
    keeper = threading.Thread(target=worker.leases.complete, args=("a",))
    with worker.leases.lock:
        keeper.start()
        worker.signal()
    keeper.join()
    assert "Celery's wait" not in worker.did
    assert "cancel" in worker.did


@pytest.mark.parametrize("kind", ["solo", "gevent"])
def test_an_idle_worker_has_nothing_to_wait_for(
    stage: Callable[..., Stage], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It stops at once."""
    with caplog.at_level(logging.WARNING):
        stage(kind, soft=60.0).signal()
    assert not caplog.messages
