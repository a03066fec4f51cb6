"""Redis: leases of a plain kombu ConsumerMixin, in processes of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.core.errors import ReceiptHandleExpiredError
from celery_lease.standalone.consumer import lease_consumer
from harness import ledger as ledger_module
from harness.app_redis_consumer import LEASE, QUEUE
from harness.lease_desk import Bench
from harness.ledger import Ledger
from harness.processes import LocalProcess
from harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.brokers import RedisServer

pytestmark = pytest.mark.compat

TESTS = Path(__file__).parent.parent


class Shop:
    """One broker and the consumers at it."""

    def __init__(self, url: str, directory: Path) -> None:
        self.bench = Bench(url)
        self.directory = directory
        self.ledger = Ledger(directory / "ledger.jsonl")
        self.workers: list[LocalProcess] = []

    def open(self, name: str) -> LocalProcess:
        """Start a consumer and return it ready."""
        paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
        env = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            ledger_module.ENV: str(self.ledger.path),
        }
        command = [sys.executable, "-m", "harness.app_redis_consumer", self.bench.url, name]
        worker = LocalProcess(command, self.directory / f"{name}.log", env=env)
        self.workers.append(worker)
        return worker.start().wait_log(f"{name} ready")

    def order(self, name: str, seconds: float, *hanging: str) -> None:
        self.bench.publish({"id": name, "seconds": seconds, "names": hanging}, queue=QUEUE)

    def is_empty(self) -> bool:
        """Whether no message waits or is held."""
        with self.bench.channel() as channel:
            return not channel.client.llen("jobs") and not channel.client.hlen("unacked")

    def runs(self, name: str) -> list[str]:
        """Return who worked on an order, in order."""
        return [entry.worker for entry in self.ledger.entries("start", name)]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


@pytest.fixture
def shop(valkey: RedisServer, tmp_path: Path) -> Iterator[Shop]:
    """A database and consumers of this test alone."""
    shop = Shop(valkey.fresh_url(), tmp_path)
    yield shop
    shop.close()


def test_work_that_beats_runs_once_however_long_and_a_killed_consumers_is_taken_over(
    shop: Shop,
) -> None:
    """More than twice the lease with somebody reaping all the time; then the holder is killed."""
    first = shop.open("first")
    shop.order("long", 2.5 * LEASE)
    shop.ledger.wait("start", "long")
    shop.open("second")
    shop.ledger.wait("end", "long")
    assert shop.runs("long") == ["first"]
    eventually(shop.is_empty)

    shop.order("killed", 60)
    shop.order("killed too", 60)
    shop.ledger.wait("start", "killed")
    shop.ledger.wait("start", "killed too")
    holder = {name: shop.runs(name)[0] for name in ("killed", "killed too")}
    assert set(holder.values()) == {"first", "second"}
    first.kill_group()
    victim = next(name for name, worker in holder.items() if worker == "first")
    shop.open("third")
    starts = shop.ledger.wait("start", victim, count=2)
    assert starts[1].worker == "third"
    assert starts[1].facts["losses"] == 1
    assert starts[1].facts["token"] > starts[0].facts["token"]


def test_a_consumer_that_stops_beating_is_replaced_and_its_late_ack_is_void(shop: Shop) -> None:
    """The next one has the message; the former one's acknowledgement does not take it away."""
    shop.open("first")
    shop.order("stuck", 60, "first")
    shop.ledger.wait("start", "stuck")
    second = shop.open("second")
    shop.ledger.wait("start", "stuck", count=2)
    assert shop.runs("stuck") == ["first", "second"]
    (late,) = shop.ledger.wait("end", "stuck")
    assert late.worker == "first"
    assert not shop.is_empty()  # the second still holds it
    second.kill_group()
    starts = shop.ledger.wait("start", "stuck", count=3)  # and when it dies, it is not lost
    assert starts[2].facts["losses"] == 2


def test_a_lease_of_a_consumer_can_be_extended_and_lost(valkey: RedisServer) -> None:
    """The receipt says so when it is no longer valid; what is not extended goes back on close."""
    bench = Bench(valkey.fresh_url())
    bench.publish("a", "b")
    received: list[Any] = []
    with bench.channel() as channel:
        leases = lease_consumer(channel, seconds=30)
        queue = bench.desk("elsewhere").channel  # only a second connection
        received += [channel.basic_get("q"), channel.basic_get("q")]
        a = leases.lease_of(received[0])
        assert (a.deliveries, a.losses) == (1, 0)
        a.extend_visibility(0.5)  # also the time for an answer
        eventually(leases.reap, every=0.3)
        with pytest.raises(ReceiptHandleExpiredError):
            a.extend_visibility(30)
        received[0].ack()
        assert queue.queue_declare("q").message_count == 1
        leases.lease_of(received[1])
    assert bench.waiting() == 2
    with pytest.raises(KeyError):
        leases.lease_of(received[1])
    leases.close()
    bench.close()
