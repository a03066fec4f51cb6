"""A map of a leased task in real workers: longer than its lease, and lost with none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_lease import LeasedTask
from harness.waiting import eventually
from harness.workers import WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from harness.brokers import RedisServer
    from harness.ledger import Ledger
    from harness.setup import Setup

pytestmark = pytest.mark.compat

OPTIONS = WorkerOptions(module="harness.app_leased")
ITEMS = 6  #: of a second each, under a lease of three


def late(_seconds: float) -> None: ...


def test_a_map_outlives_its_worker_and_its_lease(
    setup: Setup, fleet: WorkerFleet, ledger: Ledger, valkey: RedisServer
) -> None:
    """Each item beats, so that one delivery does all; that of a killed worker begins anew.

    Failed before: it was acknowledged when it began, and lost with the worker.
    """
    with setup.app() as app:
        task: Any = app.task(base=LeasedTask, name="any.late", shared=False)(late)
        first = fleet.start(setup, OPTIONS)
        result = task.map([1.0] * ITEMS).delay()
        ledger.wait("end", count=2, within=40)
        first.kill()
        done = ledger.count("end")
        fleet.start(setup, OPTIONS)
        assert result.get(timeout=60) == [None] * ITEMS
        assert ledger.count("end") == done + ITEMS
        deliveries = [each.facts["deliveries"] for each in ledger.entries("start")]
        assert deliveries[-ITEMS:] == [2] * ITEMS
    with valkey.client(setup.database) as client:
        eventually(lambda: not client.exists("unacked", "unacked.claims"))
