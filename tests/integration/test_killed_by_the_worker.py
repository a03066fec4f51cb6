"""A process that its worker kills: its message goes back, whoever learns of its end first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.places import place_of
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from harness.brokers import RedisServer
    from harness.ledger import Ledger
    from harness.workers import WorkerFleet

pytestmark = pytest.mark.compat


@pytest.mark.parametrize("broker", ["valkey", "rabbitmq classic"])
def test_a_silent_task_runs_again_though_the_main_loop_hears_of_its_end_first(
    broker: str,
    request: pytest.FixtureRequest,
    fleet: WorkerFleet,
    ledger: Ledger,
    valkey: RedisServer,
) -> None:
    """Celery calls the end of a killed process a revoke, stores that and acknowledges."""
    place = place_of(broker, request, task_ignore_result=False)
    setup = place.setup.having(result_backend=valkey.fresh_url())
    options = WorkerOptions(module="harness.app_slow_keeper", queues=place.queue, concurrency=2)
    fleet.start(setup, options)
    with setup.app() as app:
        result = app.send_task("any.silent", (60.0,))
        ledger.wait("start", result.id, count=2, within=30)
        assert result.get(timeout=30) is None
    eventually(lambda: place.left() == 0, 20)


@pytest.mark.parametrize("broker", ["valkey", "rabbitmq classic"])
def test_a_task_that_is_out_of_time_goes_back_though_the_main_loop_hears_of_its_end_first(
    broker: str,
    request: pytest.FixtureRequest,
    fleet: WorkerFleet,
    ledger: Ledger,
    valkey: RedisServer,
) -> None:
    """As the worker stops: the lease is still held, and would be completed."""
    place = place_of(broker, request, lease_shutdown_timeout=0.5, task_ignore_result=False)
    setup = place.setup.having(result_backend=valkey.fresh_url())
    options = WorkerOptions(module="harness.app_slow_keeper", queues=place.queue, concurrency=2)
    worker = fleet.start(setup, options)
    with setup.app() as app:
        result = app.send_task("any.silent", (60.0,), headers={"lease": {"lease_extension": 60}})
        ledger.wait("start", result.id)
        worker.term()
        worker.wait(30)
        assert place.waiting() == 1, worker.log
        assert result.state == "PENDING"
