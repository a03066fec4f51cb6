"""RabbitMQ and its consumer timeout: leases end before, and workers outlive what outruns it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from harness.at_once import Stages, at_once
from harness.rabbitmq import with_queue
from harness.stage import RabbitStage, rabbit_stage
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.rabbitmq import RabbitServer

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

#: Seconds after which the server closes the channel of a client that does not acknowledge.
TIMEOUT = 9


@pytest.fixture(scope="module")
def stages(
    rabbitmq: RabbitServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stages[RabbitStage]]:
    """Queues of one server, which looks each second instead of each minute."""
    rabbitmq.evaluate("application:set_env(rabbit, channel_tick_interval, 1000)")
    rabbitmq.evaluate(f"application:set_env(rabbit, consumer_timeout, {TIMEOUT * 1000})")
    with Stages(tmp_path_factory, partial(rabbit_stage, rabbitmq)) as stages:
        yield stages
    rabbitmq.evaluate("application:set_env(rabbit, consumer_timeout, 1800000)")
    rabbitmq.evaluate("application:set_env(rabbit, channel_tick_interval, 60000)")


@at_once
def test_a_lease_ends_before_the_consumer_timeout(stage: RabbitStage) -> None:
    """The channel lives on, under the other tasks of the worker too, and the log tells why."""
    timeout = {"consumer_timeout": TIMEOUT}
    timed = stage.rabbitmq.timed
    setup = stage.rabbitmq.setup(stage.queue, timed, broker_transport_options=timeout)
    worker = stage.start(setup, concurrency=2)
    send = with_queue(setup.app()).send_task
    endless = send("any.work", (300.0,))
    worker.wait_log(f"task any.work[{endless.id}] lost (the broker holds no message longer)", 30)
    stage.ledger.wait("told", endless.id)
    fine = send("any.work", (4.0,))
    stage.ledger.wait("start", endless.id, count=3, within=30)
    stage.ledger.wait("end", fine.id)
    assert stage.ledger.count("start", fine.id) == 1
    assert f"leases of queue {stage.queue} end after 6 s" in worker.log
    assert "PRECONDITION_FAILED" not in worker.log


@at_once
def test_a_consumer_timeout_that_is_no_number_is_refused_at_the_start(stage: RabbitStage) -> None:
    """In one line with its value and what to set; no message is touched."""
    wrong = {"consumer_timeout": "30m"}
    setup = stage.rabbitmq.setup(stage.queue, broker_transport_options=wrong)
    options = WorkerOptions(module="harness.app_leased", queues=stage.queue)
    worker = stage.fleet.launch(setup, options)
    assert worker.wait(30) == 1
    line = "worker not started: broker_transport_options['consumer_timeout'] is '30m'. Set it to"
    assert worker.log.count(line) == 1
    assert "Traceback" not in worker.log


@at_once
def test_a_plain_task_that_outruns_the_consumer_timeout_leaves_leases_alone(
    stage: RabbitStage,
) -> None:
    """Its message goes back in time, so that the channel lives on, and the log names it."""
    timeout = {"consumer_timeout": TIMEOUT}
    timed = stage.rabbitmq.timed
    setup = stage.rabbitmq.setup(stage.queue, timed, broker_transport_options=timeout)
    worker = stage.start(setup, concurrency=3)
    send = with_queue(setup.app()).send_task
    plain = send("any.plain", (16.0, 0.1))
    waits = send("any.plain", (0.1,), countdown=10)
    stage.ledger.wait("start", plain.id)
    worker.wait_log(
        f"task any.plain[{plain.id}] of queue {stage.queue}, without a lease, still runs", 30
    )
    beside = send("any.work", (5.0,))
    stage.ledger.wait("end", beside.id, within=20)
    assert stage.ledger.count("start", beside.id) == 1
    stage.ledger.wait("end", plain.id, count=2, within=30)
    stage.ledger.wait("end", waits.id, within=30)
    stage.rabbitmq.wait_empty(stage.queue)
    assert [stage.ledger.count("start", each.id) for each in (plain, waits)] == [2, 1]
    assert worker.returncode is None
    assert "PRECONDITION_FAILED" not in worker.log


@pytest.mark.parametrize("pool", ["prefork", "solo", "gevent"])
@at_once
def test_a_worker_outlives_a_consumer_timeout_that_nobody_told_it(
    stage: RabbitStage, pool: str
) -> None:
    """It says which task outran it, connects anew, and knows a timeout that is named."""
    timed = stage.rabbitmq.timed
    setup = stage.rabbitmq.setup(stage.queue, timed, broker_connection_retry_delay=1)
    worker = stage.start(setup, pool, concurrency=2)
    send = with_queue(setup.app()).send_task
    first = send("any.plain", (TIMEOUT + 5.0, 0.1))
    worker.wait_log(
        f"task any.plain[{first.id}] of queue {stage.queue}, without a lease, still", 40
    )
    stage.ledger.wait("end", first.id, count=2, within=40)
    stage.rabbitmq.wait_empty(stage.queue)
    if timed:  # since 4.3 the server names no timeout, and does not keep to it each time
        assert worker.returncode is None
        return
    closed = worker.log.count("PRECONDITION_FAILED")
    second = send("any.plain", (TIMEOUT + 5.0, 0.1))
    worker.wait_log(
        f"task any.plain[{second.id}] of queue {stage.queue}, without a lease, still", 40
    )
    stage.ledger.wait("end", second.id, count=2, within=40)
    stage.rabbitmq.wait_empty(stage.queue)
    assert worker.log.count("PRECONDITION_FAILED") == closed
    assert worker.returncode is None


@pytest.mark.parametrize("pool", ["prefork", "solo"])
@at_once
def test_a_lease_ends_with_its_consumer(stage: RabbitStage, pool: str) -> None:
    """RabbitMQ cancels it when it takes messages back, since 4.3, or when the queue is deleted."""
    setup = stage.rabbitmq.setup(stage.queue)
    worker = stage.start(setup, pool)
    task = with_queue(setup.app()).send_task("any.work", (300.0,))
    stage.ledger.wait("start", task.id)
    with stage.rabbitmq.bench().channel() as channel:
        channel.queue_delete(stage.queue)
    stage.ledger.wait("told", task.id, within=30)
    worker.wait_log(f"RabbitMQ has cancelled the consumer of queue {stage.queue}", 30)
    assert worker.returncode is None
