"""Kombu's word on what a worker leaves: nothing, because all went back before it looked."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from harness.places import PGMQ, place_of
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from harness.workers import WorkerFleet

pytestmark = [pytest.mark.timeout(180)]

BROKERS = ["valkey", "sqs", *PGMQ]


@pytest.mark.parametrize("how", ["warm", "cold"])
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
@pytest.mark.parametrize("broker", BROKERS)
def test_a_worker_that_gave_all_back_does_not_speak_of_restoring(
    request: pytest.FixtureRequest, fleet: WorkerFleet, broker: str, pool: str, how: str
) -> None:
    """Its three waiting messages are back, and what ran is done or back, when kombu closes."""
    place = place_of(broker, request, visibility=30, lease_shutdown_timeout=3)
    app = place.app()
    headers = {"lease": {"lease_extension": 30}}
    for seconds in (2.0, 0.1, 0.1, 0.1):
        app.send_task("any.work", (seconds,), headers=headers)
    options = WorkerOptions(
        module="harness.app_leased", queues=place.queue, pool=pool, concurrency=1
    )
    worker = fleet.start(place.setup, options)
    fleet.ledger.wait("start", within=60)
    worker.send(signal.SIGTERM if how == "warm" else signal.SIGQUIT)
    worker.wait(60)
    eventually(lambda: place.waiting() >= 3, 30, what="what waited is back")
    assert "Restoring" not in worker.log
    assert "Traceback" not in worker.log
