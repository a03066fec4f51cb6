"""Redis: leased messages beside everybody else who reads the database with plain kombu."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection

from celery_lease.core.delivery import Answer
from harness.waiting import always, eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.lease_desk import Bench
    from harness.setup import Setup
    from harness.workers import WorkerFleet

pytestmark = pytest.mark.compat


@pytest.fixture
def plain(bench: Bench) -> Iterator[Any]:
    """The channel of a plain reader that restores what it finds older than a second, always."""
    options = {"visibility_timeout": 1}
    with Connection(bench.url, transport_options=options) as connection:
        yield connection.channel()


def sweep(channel: Any) -> None:
    """Restore what is overdue, as every reader does now and then."""
    channel.qos.restore_visible(interval=1)


def test_a_sweep_with_any_timeout_leaves_a_live_lease_alone(bench: Bench, plain: Any) -> None:
    """Measured from its delivery the message is older than the timeout; it is not restored."""
    bench.publish("leased", "plain")
    desk = bench.desk(seconds=30)
    desk.holder.leases = lambda message: message.payload == "leased"
    leased, _ = desk.receive(2)
    desk.stop()
    time.sleep(1.5)
    sweep(plain)
    assert bench.waiting() == 1  # the plain one, so the sweep did sweep
    assert desk.extend(leased) is Answer.HELD


def test_a_sweep_restores_a_lease_that_expired_with_nobody_left(bench: Bench, plain: Any) -> None:
    """After the lease and the sweeper's own timeout; its holder is fenced off by that as well."""
    bench.publish("a")
    desk = bench.desk(seconds=0.2)
    (a,) = desk.receive()
    desk.stop()
    eventually(lambda: sweep(plain) or bench.waiting() == 1, every=0.2)
    assert desk.extend(a, late=True) is Answer.LOST
    assert desk.driver.complete([a.claim.tag]) == [Answer.LOST]
    assert desk.driver.requeue([a.claim.tag], orderly=True, front=True) == [Answer.LOST]
    assert bench.waiting() == 1


def test_a_plain_consumers_stale_acknowledgement_does_not_end_a_lease(
    bench: Bench, plain: Any
) -> None:
    """It had the message first, under the publisher's tag; so do its reject and its close."""
    bench.publish("a", "b", "c")
    stale = [plain.basic_get("q") for _ in range(3)]
    time.sleep(1.5)
    sweep(plain)  # by itself, as after a pause
    desk = bench.desk()
    messages = desk.receive(3)
    stale[0].ack()
    stale[1].reject()
    stale[2].reject(requeue=True)
    plain.close()
    assert [desk.extend(message) for message in messages] == [Answer.HELD] * 3
    assert bench.waiting() == 0
    for message in messages:
        message.ack()
    assert set(desk.holder.answers) == {Answer.HELD}
    assert plain.connection is None or desk.channel.client.hlen("unacked") == 0


def test_a_plain_worker_beside_a_leased_one_neither_steals_nor_loses(
    setup: Setup, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """It reads the same queue with a timeout of one second and sweeps as fast as it can."""
    from harness.app_redis_lease import beating

    gate = tmp_path / "gate"
    leased = fleet.start(setup, WorkerOptions(module="harness.app_redis_lease"))
    eager = {
        "visibility_timeout": 1,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
    app = setup.app()
    app.send_task(beating.name, [str(gate)], task_id="long")
    fleet.ledger.wait("start", "long")
    both = WorkerOptions(pool="solo", queues="celery,other")
    fleet.start(setup.having(broker_transport_options=eager), both)
    # Work for the plain worker, whose every turn sweeps; more than one lease long.
    for number in range(6):
        app.send_task("stock.early", [0.5], task_id=f"short {number}", queue="other")
    for number in range(6):
        fleet.ledger.wait("end", f"short {number}", within=30)
    assert always(lambda: fleet.ledger.count("start", "long") == 1, during=3.0, every=0.2)
    gate.touch()
    fleet.ledger.wait("end", "long")
    assert fleet.ledger.count("start", "long") == 1
    assert "LeaseLost" not in leased.log
