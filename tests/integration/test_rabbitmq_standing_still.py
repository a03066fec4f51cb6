"""RabbitMQ and workers whose consuming thread stands still: in a task, or at the door of a pool."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from harness.ledger import now
from harness.rabbitmq import with_queue
from harness.tcp_proxy import TcpProxy
from harness.waiting import always, eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.ledger import Ledger
    from harness.rabbitmq import RabbitServer
    from harness.setup import Setup
    from harness.workers import Worker, WorkerFleet

pytestmark = [pytest.mark.timeout(180), pytest.mark.long]

POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
STANDING = ("solo", "gevent", "eventlet")
#: Of a task under whose lease a stopping worker waits.
LONG = {"lease": {"lease_extension": 30}}
#: Seconds that a busy machine may take for what takes none.
MARGIN = 5.0
_numbers = itertools.count(1)


@pytest.fixture
def queue() -> str:
    """A queue of this test."""
    return f"still{next(_numbers)}"


@pytest.fixture
def network(rabbitmq: RabbitServer) -> Iterator[TcpProxy]:
    """A way to the server that can fall silent."""
    with TcpProxy(rabbitmq.port) as proxy:
        yield proxy


def start(fleet: WorkerFleet, setup: Setup, pool: str, **options: Any) -> Worker:
    """Start a worker of one place, which is sent a few messages ahead."""
    queue = setup.conf["task_default_queue"]
    return fleet.start(
        setup, WorkerOptions(module="harness.app_leased", pool=pool, queues=queue, **options)
    )


def fill(setup: Setup, ledger: Ledger, seconds: float, **options: Any) -> tuple[str, list[str]]:
    """Send one task that takes its time and, once it runs, three that have to wait for it."""
    send = with_queue(setup.app()).send_task
    task_id = send("any.work", (seconds,), **options).id
    ledger.wait("start", task_id, within=30)
    return task_id, [send("any.work", (0.1,)).id for _ in range(3)]


@pytest.mark.parametrize("pool", STANDING)
def test_a_task_keeps_its_connection_though_nobody_reads(
    pool: str, rabbitmq: RabbitServer, queue: str, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """Heartbeats are heard, and none is missed, while more waits than the pool has places for."""
    setup = rabbitmq.setup(queue, broker_heartbeat=2)
    worker = start(fleet, setup, pool)
    task_id, others = fill(setup, ledger, 14.0)
    ledger.wait("end", task_id, within=40)
    for each in others:
        ledger.wait("end", each, within=20)
    assert [ledger.count("start", each) for each in (task_id, *others)] == [1, 1, 1, 1]
    rabbitmq.wait_empty(queue)
    assert worker.returncode is None
    assert "Connection to broker lost" not in worker.log


@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet"])
def test_a_task_keeps_its_lease_over_tls(
    pool: str, rabbitmq: RabbitServer, queue: str, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """The main loop reads without an end, while the keeper asks on the same connection."""
    setup = rabbitmq.setup(queue, broker_use_ssl=rabbitmq.ssl_options)
    setup = replace(setup, broker=rabbitmq.tls_url)
    worker = start(fleet, setup, pool, concurrency=2)
    task_id = with_queue(setup.app()).send_task("any.work", (14.0,)).id
    ledger.wait("end", task_id, within=30)
    assert ledger.count("start", task_id) == 1
    assert "Connection to broker lost" not in worker.log
    assert "lost its lease" not in worker.log
    rabbitmq.wait_empty(queue)


@pytest.mark.parametrize("pool", POOLS)
def test_what_waits_goes_back_though_nobody_reads(
    pool: str, rabbitmq: RabbitServer, queue: str, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """I6: also what RabbitMQ has sent and no one has seen yet; the task in flight ends."""
    setup = rabbitmq.setup(queue)
    worker = start(fleet, setup, pool)
    task_id, others = fill(setup, ledger, 8.0, headers=LONG)
    eventually(lambda: rabbitmq.ready(queue) == 0, what="all are with the worker")
    asked_at = now()
    worker.term()
    eventually(lambda: rabbitmq.ready(queue) == 3, 10, every=0.1, what="three are back")
    assert now() - asked_at < 1 + MARGIN
    assert always(lambda: rabbitmq.ready(queue) == 3, 1.0, every=0.2)
    assert ledger.count("end") == 0
    assert worker.wait(30) == 0
    assert ledger.count("end", task_id) == 1
    assert rabbitmq.counts(queue) == (3, 0)
    assert [ledger.count("start", each) for each in others] == [0, 0, 0]


@pytest.mark.parametrize("pool", POOLS)
def test_a_holder_cut_off_in_silence_is_told_by_its_deadline(
    pool: str,
    *,
    rabbitmq: RabbitServer,
    queue: str,
    fleet: WorkerFleet,
    ledger: Ledger,
    network: TcpProxy,
) -> None:
    """I1, I3: what RabbitMQ does not confirm is not extended, and a late result is thrown away."""
    setup = rabbitmq.setup(queue)
    behind = replace(setup, broker=rabbitmq.url_at(network.port))
    former = start(fleet, behind, pool)
    send = with_queue(setup.app()).send_task
    task_id = send("any.stubborn", (16.0, 0.1)).id
    ledger.wait("start", task_id, within=30)
    network.freeze()
    rabbitmq.cut_connections()
    start(fleet, setup, "prefork")
    ledger.wait("start", task_id, count=2, within=30)
    former.wait_log("its result is discarded", 40)
    runs = sorted(entry.facts["run"] for entry in ledger.wait("end", task_id, count=2, within=20))
    assert runs == [1, 2]
    rabbitmq.wait_empty(queue)
    network.thaw()
    rabbitmq.wait_empty(queue)
    assert ledger.count("start", task_id) == 2


def test_a_silent_broker_is_given_up_before_it_gives_up_its_client(
    rabbitmq: RabbitServer, queue: str, fleet: WorkerFleet, ledger: Ledger, network: TcpProxy
) -> None:
    """I1: by its heartbeats, though the lease is far longer: RabbitMQ has requeued soon after."""
    setup = rabbitmq.setup(queue, broker_heartbeat=4)
    former = start(fleet, replace(setup, broker=rabbitmq.url_at(network.port)), "solo")
    task_id = with_queue(setup.app()).send_task("any.work", (25.0, 0.1), headers=LONG).id
    ledger.wait("start", task_id, within=30)
    network.freeze()
    ledger.wait("told", task_id, within=20)
    assert rabbitmq.ready(queue) == 0, "told before another could run it"
    start(fleet, setup, "prefork")
    ledger.wait("end", task_id, within=40)
    assert ledger.count("start", task_id) == 2
    assert former.returncode is None
