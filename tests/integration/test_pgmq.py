"""Leases on PostgreSQL: real workers on kombu's pgmq transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

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
    return WorkerOptions(module="harness.app_pgmq", **more)


def test_long_waiting_and_scheduled_tasks_run_once(
    database: Database, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """Whatever a worker holds longer than kombu would hide it, no other worker gets to see."""
    setup = database.setup(visibility_timeout=3, pool_size=1)
    fleet.start(setup, options())
    send = setup.app().send_task
    running = send("pgmq.work", (7.0,))
    ledger.wait("start", running.id)
    prefetched = send("pgmq.work", (0.1,))
    scheduled = send("pgmq.work", (0.1,), countdown=8)
    eventually(lambda: database.counts() == (0, 3), what="all are received")
    fleet.start(setup, options())
    ledger.wait("end", count=3, within=60)
    eventually(lambda: database.counts() == (0, 0), what="all are deleted")
    for task in (running, prefetched, scheduled):
        (start,) = ledger.entries("start", task.id)
        assert (start.worker, start.facts["deliveries"]) == ("w1@harness", 1)


def test_a_killed_workers_task_is_taken_over(
    database: Database, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """PostgreSQL returns the message by itself when the lease expires, with a greater token.

    Kombu would hide it for ten minutes.
    """
    setup = database.setup()
    first = fleet.start(setup, options())
    task = setup.app().send_task("pgmq.work", (4.0,))
    ledger.wait("start", task.id)
    first.kill_group()
    fleet.start(setup, options())
    ledger.wait("end", task.id, within=60)
    before, after = ledger.entries("start", task.id)
    assert after.facts["deliveries"] == 2
    assert after.facts["token"] > before.facts["token"]
    eventually(lambda: database.counts() == (0, 0), what="it is deleted")


def test_a_stopping_worker_hands_back_what_waits(
    database: Database, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """What does not run is visible at once; what runs ends and is acknowledged.

    Kombu would hide both for ten minutes. The token grows over a task's retries.
    """
    setup = database.setup()
    worker = fleet.start(setup, options(concurrency=2))
    send = setup.app().send_task
    for _ in range(2):
        send("pgmq.patient", (6.0,))
    ledger.wait("start", count=2)
    waiting = send("pgmq.again")
    eventually(lambda: database.counts() == (0, 3), what="it is received")
    worker.term()
    eventually(lambda: database.counts() == (1, 2), what="it is visible again")
    assert ledger.count("end") == 0, "that was before the running tasks ended"
    assert worker.wait(40) == 0
    assert database.counts() == (1, 0), "what ran is acknowledged"
    fleet.start(setup, options())
    ledger.wait("end", waiting.id, within=40)
    tokens = [entry.facts["token"] for entry in ledger.entries("start", waiting.id)]
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 3
    eventually(lambda: database.counts() == (0, 0), what="all are deleted")


def test_an_expired_lease_that_nobody_took_is_confirmed(
    database: Database, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """The task process asks the database, which says that the message is still its own."""
    setup = database.setup()
    worker = fleet.start(setup, options(concurrency=1))
    send = setup.app().send_task
    late = send("pgmq.late", (5.0,))
    ledger.wait("start", late.id)
    # The only reader does not read while its prefetch window is full.
    for _ in range(6):
        send("pgmq.patient", (0.0,))
    ledger.wait("end", count=7, within=40)
    eventually(lambda: database.counts() == (0, 0), what="all are deleted")
    assert ledger.count("start", late.id) == 1
    assert f"[{late.id}] lost (expired)" in worker.log, "its deadline had passed"


def test_a_message_that_kills_its_processes_is_put_aside(
    database: Database, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """After as many losses as it may have it is a dead letter, and the worker works on."""
    setup = database.setup().having(lease_max_deliveries=2)
    fleet.start(setup, options())
    send = setup.app().send_task
    send("pgmq.die")
    eventually(lambda: database.counts() == (0, 0) and ledger.count("start") == 2, 40)
    assert database.counts("celery_dead") == (1, 0)
    following = send("pgmq.work", (0.1,))
    ledger.wait("end", following.id)
