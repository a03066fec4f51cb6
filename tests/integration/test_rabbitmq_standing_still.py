"""RabbitMQ and workers whose consuming thread stands still: in a task, or at the door of a pool."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from harness.at_once import Stages, at_once
from harness.ledger import now
from harness.rabbitmq import with_queue
from harness.stage import RabbitStage, rabbit_stage
from harness.waiting import always, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.ledger import Ledger
    from harness.rabbitmq import RabbitServer
    from harness.setup import Setup

pytestmark = [pytest.mark.timeout(180), pytest.mark.long]

POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
STANDING = ("solo", "gevent", "eventlet")
#: Of a task under whose lease a stopping worker waits.
LONG = {"lease": {"lease_extension": 30}}
#: Seconds that a busy machine may take for what takes none.
MARGIN = 5.0


@pytest.fixture(scope="module")
def stages(
    rabbitmq: RabbitServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stages[RabbitStage]]:
    """Queues of one server."""
    with Stages(tmp_path_factory, partial(rabbit_stage, rabbitmq)) as stages:
        yield stages


def fill(setup: Setup, ledger: Ledger, seconds: float, **options: Any) -> tuple[str, list[str]]:
    """Send one task that takes its time and, once it runs, three that have to wait for it."""
    send = with_queue(setup.app()).send_task
    task_id = send("any.work", (seconds,), **options).id
    ledger.wait("start", task_id, within=30)
    return task_id, [send("any.work", (0.1,)).id for _ in range(3)]


@pytest.mark.parametrize("pool", STANDING)
@at_once
def test_a_task_keeps_its_connection_though_nobody_reads(stage: RabbitStage, pool: str) -> None:
    """Heartbeats are heard, and none is missed, while more waits than the pool has places for."""
    setup = stage.rabbitmq.setup(stage.queue, broker_heartbeat=2)
    worker = stage.start(setup, pool)
    task_id, others = fill(setup, stage.ledger, 14.0)
    stage.ledger.wait("end", task_id, within=40)
    for each in others:
        stage.ledger.wait("end", each, within=20)
    assert [stage.ledger.count("start", each) for each in (task_id, *others)] == [1, 1, 1, 1]
    stage.rabbitmq.wait_empty(stage.queue)
    assert worker.returncode is None
    assert "Connection to broker lost" not in worker.log


@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet"])
@at_once
def test_a_task_keeps_its_lease_over_tls(stage: RabbitStage, pool: str) -> None:
    """The main loop reads without an end, while the keeper asks on the same connection."""
    setup = stage.rabbitmq.setup(stage.queue, broker_use_ssl=stage.rabbitmq.ssl_options)
    setup = replace(setup, broker=stage.rabbitmq.tls_url)
    worker = stage.start(setup, pool, concurrency=2)
    task_id = with_queue(setup.app()).send_task("any.work", (14.0,)).id
    stage.ledger.wait("end", task_id, within=30)
    assert stage.ledger.count("start", task_id) == 1
    assert "Connection to broker lost" not in worker.log
    assert "lost its lease" not in worker.log
    stage.rabbitmq.wait_empty(stage.queue)


@pytest.mark.parametrize("pool", POOLS)
@at_once
def test_what_waits_goes_back_though_nobody_reads(stage: RabbitStage, pool: str) -> None:
    """I6: also what RabbitMQ has sent and no one has seen yet; the task in flight ends."""
    setup = stage.rabbitmq.setup(stage.queue)
    worker = stage.start(setup, pool)
    task_id, others = fill(setup, stage.ledger, 8.0, headers=LONG)
    eventually(lambda: stage.rabbitmq.ready(stage.queue) == 0, what="all are with the worker")
    asked_at = now()
    worker.term()
    eventually(lambda: stage.rabbitmq.ready(stage.queue) == 3, 10, every=0.1, what="three are back")
    assert now() - asked_at < 1 + MARGIN
    assert always(lambda: stage.rabbitmq.ready(stage.queue) == 3, 1.0, every=0.2)
    assert stage.ledger.count("end") == 0
    assert worker.wait(30) == 0
    assert stage.ledger.count("end", task_id) == 1
    assert stage.rabbitmq.counts(stage.queue) == (3, 0)
    assert [stage.ledger.count("start", each) for each in others] == [0, 0, 0]


@pytest.mark.parametrize("pool", POOLS)
@at_once
def test_a_holder_cut_off_in_silence_is_told_by_its_deadline(stage: RabbitStage, pool: str) -> None:
    """I1, I3: what RabbitMQ does not confirm is not extended, and a late result is thrown away."""
    setup = stage.rabbitmq.setup(stage.queue)
    behind = replace(setup, broker=stage.rabbitmq.url_at(stage.network.port))
    former = stage.start(behind, pool)
    send = with_queue(setup.app()).send_task
    task_id = send("any.stubborn", (16.0, 0.1)).id
    stage.ledger.wait("start", task_id, within=30)
    stage.network.freeze()
    stage.rabbitmq.cut_connections(stage.network.ports())
    stage.start(setup, "prefork")
    stage.ledger.wait("start", task_id, count=2, within=30)
    former.wait_log("its result is discarded", 40)
    ends = stage.ledger.wait("end", task_id, count=2, within=20)
    runs = sorted(entry.facts["run"] for entry in ends)
    assert runs == [1, 2]
    stage.rabbitmq.wait_empty(stage.queue)
    stage.network.thaw()
    stage.rabbitmq.wait_empty(stage.queue)
    assert stage.ledger.count("start", task_id) == 2


@at_once
def test_a_silent_broker_is_given_up_before_it_gives_up_its_client(stage: RabbitStage) -> None:
    """I1: by its heartbeats, though the lease is far longer: RabbitMQ has requeued soon after."""
    setup = stage.rabbitmq.setup(stage.queue, broker_heartbeat=4)
    former = stage.start(replace(setup, broker=stage.rabbitmq.url_at(stage.network.port)), "solo")
    task_id = with_queue(setup.app()).send_task("any.work", (25.0, 0.1), headers=LONG).id
    stage.ledger.wait("start", task_id, within=30)
    stage.network.freeze()
    stage.ledger.wait("told", task_id, within=20)
    assert stage.rabbitmq.ready(stage.queue) == 0, "told before another could run it"
    stage.start(setup, "prefork")
    stage.ledger.wait("end", task_id, within=40)
    assert stage.ledger.count("start", task_id) == 2
    assert former.returncode is None
