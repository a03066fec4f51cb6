"""Leases on PostgreSQL: real workers on kombu's pgmq transport."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from harness.draining import Drained, by_signal
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from harness.ledger import Ledger
    from harness.postgres import Database
    from harness.workers import WorkerFleet


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


@pytest.mark.parametrize("library", ["eventlet", "gevent"])
def test_other_greenlets_run_while_one_waits_for_the_server(
    database: Database, library: str
) -> None:
    """Else a read of a second, as kombu's, holds up every beat and the keeper in a green worker."""
    patch = {"eventlet": "eventlet.monkey_patch()", "gevent": "gevent.monkey.patch_all()"}[library]
    program = f"""
        import {library}, {library}.{"patcher" if library == "eventlet" else "monkey"}
        {patch}
        import psycopg
        from celery_lease.brokers.pgmq.connections import yield_to_greenlets
        yield_to_greenlets()
        ticks = []
        def tick():
            while True:
                {library}.sleep(0.05)
                ticks.append(1)
        {library}.spawn(tick)
        with psycopg.connect({database.dsn!r}) as connection:
            connection.execute("SELECT pg_sleep(1)")
        assert len(ticks) >= 3, ticks
    """
    subprocess.run([sys.executable, "-c", dedent(program)], check=True, timeout=60)
