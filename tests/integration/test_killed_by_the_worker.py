"""A process that its worker kills: its message goes back, whoever learns of its end first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.places import Place, place_of
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from harness.brokers import RedisServer
    from harness.ledger import Ledger
    from harness.workers import Worker, WorkerFleet

pytestmark = pytest.mark.compat


@pytest.fixture(params=["valkey", "rabbitmq classic"])
def place(request: pytest.FixtureRequest, valkey: RedisServer) -> Place:
    """A queue and a place for results, with half a second for tasks of a stopping worker."""
    place = place_of(request.param, request, lease_shutdown_timeout=0.5, task_ignore_result=False)
    return replace(place, setup=place.setup.having(result_backend=valkey.fresh_url()))


@pytest.fixture
def worker(place: Place, fleet: WorkerFleet) -> Worker:
    """A worker whose main loop learns of the end of a process first."""
    options = WorkerOptions(module="harness.app_slow_keeper", queues=place.queue, concurrency=2)
    return fleet.start(place.setup, options)


@pytest.mark.usefixtures("worker")
def test_a_silent_task_runs_again_though_the_main_loop_hears_of_its_end_first(
    place: Place, ledger: Ledger
) -> None:
    """Celery calls the end of a killed process a revoke, stores that and acknowledges."""
    with place.setup.app() as app:
        result = app.send_task("any.silent", (60.0,))
        ledger.wait("start", result.id, count=2, within=30)
        assert result.get(timeout=30) is None
    eventually(lambda: place.left() == 0, 20)


def test_a_task_that_is_out_of_time_goes_back_though_the_main_loop_hears_of_its_end_first(
    place: Place, worker: Worker, ledger: Ledger
) -> None:
    """As the worker stops: the lease is still held, and would be completed."""
    with place.setup.app() as app:
        result = app.send_task("any.silent", (60.0,), headers={"lease": {"lease_extension": 60}})
        ledger.wait("start", result.id)
        worker.term()
        worker.wait(30)
        assert place.waiting() == 1, worker.log
        assert result.state == "PENDING"
