"""Leases on RabbitMQ: real workers on Debian's server, classic and quorum queues."""

from __future__ import annotations

import itertools
import signal
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from harness.draining import Drained, by_remote_control
from harness.gate import Gate
from harness.rabbitmq import QUORUM, with_queue
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.fixture
def strict(rabbitmq: RabbitServer, impatient: int) -> Iterator[int]:
    """The same, of a server that looks each second instead of each minute."""
    rabbitmq.evaluate("application:set_env(rabbit, channel_tick_interval, 1000)")
    yield impatient
    rabbitmq.evaluate("application:set_env(rabbit, channel_tick_interval, 60000)")


@pytest.fixture
def impatient(rabbitmq: RabbitServer) -> Iterator[int]:
    """The seconds after which the server closes the channel of who does not acknowledge."""
    seconds = 9
    rabbitmq.evaluate(f"application:set_env(rabbit, consumer_timeout, {seconds * 1000})")
    yield seconds
    rabbitmq.evaluate("application:set_env(rabbit, consumer_timeout, 1800000)")


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


def test_a_lease_ends_before_the_consumer_timeout(
    rabbitmq: RabbitServer, queue: str, fleet: WorkerFleet, ledger: Ledger, impatient: int
) -> None:
    """The channel lives on, under the other tasks of the worker too, and the log tells why."""
    timeout = {"consumer_timeout": impatient}
    setup = rabbitmq.setup(queue, broker_transport_options=timeout)
    worker = fleet.start(setup, options(queue, concurrency=2))
    send = with_queue(setup.app()).send_task
    endless = send("any.work", (300.0,))
    worker.wait_log(f"task any.work[{endless.id}] lost (the broker holds no message longer)", 30)
    ledger.wait("told", endless.id)
    fine = send("any.work", (4.0,))
    ledger.wait("start", endless.id, count=3, within=30)
    ledger.wait("end", fine.id)
    assert ledger.count("start", fine.id) == 1
    assert f"leases of queue {queue} end after 6 s" in worker.log
    assert "PRECONDITION_FAILED" not in worker.log


@pytest.mark.timeout(300)
def test_a_plain_task_that_outruns_the_consumer_timeout_leaves_leases_alone(
    rabbitmq: RabbitServer, queue: str, fleet: WorkerFleet, ledger: Ledger, strict: int
) -> None:
    """Its message goes back in time, so that the channel lives on, and the log names it."""
    timeout = {"consumer_timeout": strict}
    setup = rabbitmq.setup(queue, broker_transport_options=timeout)
    worker = fleet.start(setup, options(queue, concurrency=3))
    send = with_queue(setup.app()).send_task
    plain = send("any.plain", (16.0, 0.1))
    waits = send("any.plain", (0.1,), countdown=12)
    ledger.wait("start", plain.id)
    worker.wait_log(f"task any.plain[{plain.id}] of queue {queue}, without a lease, still runs", 30)
    beside = send("any.work", (5.0,))
    ledger.wait("end", beside.id, within=20)
    assert ledger.count("start", beside.id) == 1
    ledger.wait("end", plain.id, count=2, within=30)
    ledger.wait("end", waits.id, within=30)
    rabbitmq.wait_empty(queue)
    assert [ledger.count("start", each.id) for each in (plain, waits)] == [2, 1]
    assert worker.returncode is None
    assert "PRECONDITION_FAILED" not in worker.log


@pytest.mark.timeout(300)
@pytest.mark.parametrize("pool", ["prefork", "solo", "gevent"])
def test_a_worker_outlives_a_consumer_timeout_that_nobody_told_it(
    pool: str,
    *,
    rabbitmq: RabbitServer,
    queue: str,
    fleet: WorkerFleet,
    ledger: Ledger,
    strict: int,
) -> None:
    """It says which task outran it, connects anew, and knows the timeout from then on."""
    setup = rabbitmq.setup(queue, broker_connection_retry_delay=1)
    worker = fleet.start(setup, options(queue, pool=pool, concurrency=2))
    send = with_queue(setup.app()).send_task
    first = send("any.plain", (strict + 5.0, 0.1))
    worker.wait_log(f"task any.plain[{first.id}] of queue {queue}, without a lease, still", 40)
    ledger.wait("end", first.id, count=2, within=40)
    rabbitmq.wait_empty(queue)
    closed = worker.log.count("PRECONDITION_FAILED")
    second = send("any.plain", (strict + 5.0, 0.1))
    worker.wait_log(f"task any.plain[{second.id}] of queue {queue}, without a lease, still", 40)
    ledger.wait("end", second.id, count=2, within=40)
    rabbitmq.wait_empty(queue)
    assert worker.log.count("PRECONDITION_FAILED") == closed
    assert worker.returncode is None


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
