"""Leases on PostgreSQL: real workers on kombu's pgmq transport."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from harness.draining import Drained, by_signal
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from harness.ledger import Ledger
    from harness.postgres import Database, PostgresServer
    from harness.workers import WorkerFleet


@pytest.fixture
def database(postgres: PostgresServer) -> Database:
    """A database of this test."""
    return postgres.fresh_database()


def options(**more: Any) -> WorkerOptions:
    """Return the command line of a worker with leased tasks."""
    return WorkerOptions(module="harness.app_leased", **more)


def test_a_drained_worker_takes_nothing_and_goes_on_when_told(
    database: Database, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """It asks the database for no messages meanwhile."""
    setup = database.setup()
    worker = fleet.start(setup, options())
    Drained(
        worker=worker,
        ledger=ledger,
        send=partial(setup.app().send_task, "any.work"),
        ready=lambda: database.counts()[0],
        delay=8,  # where the main loop waits for the pool, it hears of nothing
        **by_signal(worker),
    ).check()


def test_an_expired_lease_that_nobody_took_is_confirmed(
    database: Database, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """The task process asks the database, which says that the message is still its own."""
    setup = database.setup()
    worker = fleet.start(setup, options(concurrency=1))
    send = setup.app().send_task
    late = send("any.late", (5.0,))
    ledger.wait("start", late.id)
    # The only reader does not read while its prefetch window is full.
    for _ in range(6):
        send("any.patient", (0.0,))
    ledger.wait("end", count=7, within=40)
    eventually(lambda: database.counts() == (0, 0), what="all are deleted")
    assert ledger.count("start", late.id) == 1
    assert f"[{late.id}] lost (expired)" in worker.log, "its deadline had passed"
