"""Leases on RabbitMQ: real workers on Debian's server, classic and quorum queues."""

from __future__ import annotations

import itertools
import signal
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.worker.shutdown import SILENCE
from harness.draining import Drained, by_remote_control
from harness.gate import Gate
from harness.ledger import now
from harness.rabbitmq import QUORUM, with_queue
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from harness.ledger import Ledger
    from harness.rabbitmq import RabbitServer
    from harness.workers import WorkerFleet

KINDS = {"classic": {}, "quorum": QUORUM}
kinds = pytest.mark.parametrize("arguments", KINDS.values(), ids=KINDS)
_numbers = itertools.count(1)


@pytest.fixture
def queue() -> str:
    """A queue of this test."""
    return f"work{next(_numbers)}"


def options(queue: str, **more: Any) -> WorkerOptions:
    """Return the command line of a worker with leased tasks."""
    return WorkerOptions(module="harness.app_leased", queues=queue, **more)


def test_a_drained_worker_takes_nothing_and_goes_on_when_told(
    rabbitmq: RabbitServer, queue: str, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """RabbitMQ delivers unasked: it is told not to, and to do so again."""
    setup = rabbitmq.setup(queue)
    worker = fleet.start(setup, options(queue))
    app = with_queue(setup.app())
    Drained(
        worker=worker,
        ledger=ledger,
        send=partial(app.send_task, "any.work"),
        ready=lambda: rabbitmq.ready(queue),
        **by_remote_control(app, worker),
    ).check()


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_a_worker_that_was_resumed_stops_at_once(
    rabbitmq: RabbitServer, queue: str, fleet: WorkerFleet, pool: str
) -> None:
    """With no message in between, as one would end the wait that a frame is missing for.

    Failed before, in green pools: the timer's greenlet consumed again, and read on the connection
    of the main one, which did not stop.
    """
    worker = fleet.start(rabbitmq.setup(queue), options(queue, pool=pool))
    app = with_queue(rabbitmq.setup(queue).app())

    def consumers() -> int:
        with app.connection_for_read() as connection:
            return int(connection.channel().queue_declare(queue, passive=True).consumer_count)

    ask = partial(app.control.broadcast, destination=[worker.hostname], reply=True, limit=1)
    # Repeated: a green worker's mailbox opens a moment after it is ready.
    eventually(lambda: ask("lease_drain", timeout=2), 30)
    eventually(lambda: consumers() == 0, 20)
    assert ask("lease_resume", timeout=10)
    eventually(lambda: consumers() == 1, 20)
    asked_at = now()
    worker.term()
    assert worker.wait(30) == 0
    # A green worker without leases needs 5 s as well.
    assert now() - asked_at < SILENCE


@kinds
def test_a_lost_connection_loses_the_lease(
    rabbitmq: RabbitServer, queue: str, fleet: WorkerFleet, ledger: Ledger, arguments: Any
) -> None:
    """The broker has requeued: the task is told at its next beat and is run once more, in full."""
    setup = rabbitmq.setup(queue, arguments, broker_connection_retry_delay=1)
    worker = fleet.start(setup, options(queue, concurrency=2))
    task = with_queue(setup.app()).send_task("any.work", (60.0, 1.0))
    ledger.wait("start", task.id)
    rabbitmq.cut_connections()
    (told,) = ledger.wait("told", task.id, within=10)
    assert told.facts["reason"] == "another delivery owns the message"
    ledger.wait("end", task.id, within=40)
    rabbitmq.wait_empty(queue)
    first, second = ledger.entries("start", task.id)
    assert first.facts["token"] < second.facts["token"]
    assert second.facts["deliveries"] == 2
    assert ledger.count("end", task.id) == 1
    assert first.at < told.at < first.at + 50
    assert worker.returncode is None


def test_a_result_after_a_lost_connection_is_thrown_away(
    rabbitmq: RabbitServer, queue: str, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """A task that ignores its loss is fenced: it neither acknowledges nor ends the other run."""
    setup = rabbitmq.setup(queue)
    with Gate(rabbitmq.port) as gate:
        behind = replace(setup, broker=rabbitmq.url_at(gate.port))
        worker = fleet.start(behind, options(queue, concurrency=2))
        task = with_queue(setup.app()).send_task("any.stubborn", (12.0, 0.0))
        ledger.wait("start", task.id)
        gate.close()
        gate.open()
        ledger.wait("start", task.id, count=2)
        worker.wait_log("its result is discarded", 40)
        rabbitmq.wait_empty(queue)
    ends = ledger.entries("end", task.id)
    assert sorted(entry.facts["run"] for entry in ends) == [1, 2]
    assert ledger.count("start", task.id) == 2


def test_a_cold_shutdown_s_handler_does_not_talk_to_the_broker(
    rabbitmq: RabbitServer, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """Celery's does, and is answered with messages, which solo runs inside of it, or not at all, as
    eventlet's hub cannot wait: all go back at once, and nothing frightens whoever reads the log.
    """
    setups = {pool: rabbitmq.setup(f"cold-{pool}") for pool in ("solo", "gevent", "eventlet")}
    workers = {
        pool: fleet.launch(
            setup, WorkerOptions(module="harness.app_shutdown", pool=pool, queues=f"cold-{pool}")
        )
        for pool, setup in setups.items()
    }

    def send(seconds: float) -> None:
        for setup in setups.values():
            with_queue(setup.app()).send_task("shutdown.beats", (seconds,))

    def ready() -> list[int]:
        return [rabbitmq.ready(f"cold-{pool}") for pool in setups]

    send(30)
    ledger.wait("start", count=3, within=30)
    send(0)
    eventually(lambda: ready() == [0, 0, 0], 10)
    for worker in workers.values():
        worker.send(signal.SIGQUIT)
    eventually(lambda: ready() == [2, 2, 2], 4)
    for worker in workers.values():
        assert worker.wait(20) in (0, 1)
        assert "Traceback" not in worker.log
    assert ledger.count("start") == 3
