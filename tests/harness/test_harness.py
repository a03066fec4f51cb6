"""The test support itself: every server speaks, every worker works and none is left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

from harness.app import long
from harness.setup import Setup
from harness.waiting import eventually

if TYPE_CHECKING:
    from harness.brokers import RedisServer, SentinelSet
    from harness.workers import WorkerFleet


@pytest.mark.compat
@pytest.mark.parametrize("server", ["valkey", "redis_server", "unix_server", "tls_server"])
def test_a_task_runs_on_every_kind_of_server(
    server: str, request: pytest.FixtureRequest, fleet: WorkerFleet
) -> None:
    """A worker started on the server's URL runs a task that the test sends by it."""
    broker: RedisServer = request.getfixturevalue(server)
    setup = Setup(broker.fresh_url())
    with setup.app() as app:
        app.send_task(long.name, (0.0,))
    fleet.start(setup)
    fleet.ledger.wait("end")


@pytest.mark.compat
def test_a_sentinel_set_fails_over_to_its_replica(
    sentinel_set: SentinelSet, fleet: WorkerFleet
) -> None:
    """The master is killed; the worker takes the next task from the promoted replica."""
    url = sentinel_set.fresh_url()
    setup = Setup(url, conf={"broker_transport_options": sentinel_set.transport_options})
    fleet.start(setup)
    with setup.app() as app:
        app.send_task(long.name, (0.0,))
        fleet.ledger.wait("end")
        sentinel_set.failover()
    with setup.app() as app:
        app.send_task(long.name, (0.0,))
    fleet.ledger.wait("end", count=2, within=80)  # Celery tries less and less often


def test_nothing_of_a_killed_worker_is_left(setup: Setup, fleet: WorkerFleet) -> None:
    """A paused pool process, which cannot notice its parent's death, is gone after close."""
    worker = fleet.start(setup)
    (child,) = worker.children()
    worker.stop_group()
    worker.kill()
    worker.wait()
    worker.close()
    eventually(lambda: not psutil.pid_exists(child))


def test_data_of_an_own_server_survives_its_restart(own_valkey: RedisServer) -> None:
    """A server killed and restarted answers on its port with what it was told before."""
    with own_valkey.client() as client:
        client.set("key", "value")
    own_valkey.restart()
    with own_valkey.client() as client:
        assert client.get("key") == b"value"
