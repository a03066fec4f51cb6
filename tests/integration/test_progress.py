"""``lease_publish_progress``: ``AsyncResult.info`` shows how far a task is, until it is over."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from celery import states

from harness import django_backend
from harness.setup import Setup
from harness.waiting import eventually
from harness.workers import WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.postgres import PostgresServer


@pytest.mark.compat
def test_progress_is_seen_by_whoever_waits_and_never_stays(
    setup: Setup, fleet: WorkerFleet
) -> None:
    """A running task's ``info`` moves on; its end is SUCCESS, REVOKED, or FAILURE if its process
    died; and of many that fail at any moment of a publication, each is a FAILURE in the end.
    """
    setup = setup.having(lease_publish_progress=0.1, lease_extension=6)
    app = setup.app()
    worker = fleet.start(setup, WorkerOptions(module="harness.app_views", concurrency=2))

    def send(task: str, *args: Any, **options: Any) -> Any:
        return app.send_task(f"views.{task}", args, **options)

    long = send("work", 2)
    eventually(lambda: long.state == "PROGRESS", 10)
    first = long.info
    assert (first["total"], first["note"], first["deliveries"]) == (2, "working", 1)
    eventually(lambda: long.state == "PROGRESS" and long.info["done"] > first["done"])
    assert long.get(timeout=20) == "done"
    assert (long.state, long.info) == (states.SUCCESS, "done")

    cancelled = send("work", 60)
    eventually(lambda: cancelled.state == "PROGRESS")
    app.control.broadcast("lease_cancel", {"task_id": cancelled.id})
    eventually(lambda: cancelled.state == states.REVOKED)

    limited = send("work", 60, time_limit=1)
    failing = [send("fails", 0.1 + 0.005 * (n % 20)) for n in range(60)]
    for each in (limited, *failing):
        each.get(timeout=60, propagate=False)
    assert {each.state for each in (limited, *failing)} == {states.FAILURE}
    assert cancelled.state == states.REVOKED
    assert "is not published" not in worker.log
    assert "failed, next try" not in worker.log


@pytest.fixture
def database(postgres_programs: Path) -> Iterator[PostgresServer]:
    """A database server of one test, which restarts."""
    from harness.postgres import PostgresServer

    with PostgresServer(postgres_programs).create() as server:
        yield server


@pytest.mark.parametrize(
    "backend", ["database", "rpc", pytest.param("redis", marks=pytest.mark.compat)]
)
def test_progress_keeps_what_a_result_says_besides(
    setup: Setup, fleet: WorkerFleet, request: pytest.FixtureRequest, backend: str
) -> None:
    """Name, arguments and worker (``result_extended``), as ``update_state`` in the task does.

    Failed with: None for all of them; with RPC no progress at all. Before Celery 5.7 RPC keeps
    none of them.
    """
    if backend == "database":
        setup = _on(setup, request.getfixturevalue("database"))
    elif backend == "rpc":
        setup = replace(setup, backend="rpc://")
    setup = setup.having(lease_publish_progress=0.1, lease_extension=20, result_extended=True)
    app = setup.app()
    worker = fleet.launch(setup, WorkerOptions(module="harness.app_views")).wait_ready(90)
    long = app.send_task("views.work", (60,), {})
    eventually(lambda: long.state == "PROGRESS", 30, what=lambda: worker.log)
    meta = long._get_task_meta()
    facts = {name: meta.get(name) for name in ("name", "args", "kwargs", "worker", "queue")}
    assert facts == {
        "name": "views.work",
        "args": [60],
        "kwargs": {},
        "worker": worker.hostname,
        "queue": "celery",
    }


def test_progress_goes_on_after_the_database_restarted(
    setup: Setup, fleet: WorkerFleet, database: PostgresServer
) -> None:
    """With a backend on Django's connection, which stays broken in a thread until it is closed.

    Failed with: "the connection is closed" at every try since.
    """
    path = "harness.django_backend.DjangoBackend"
    setup = replace(setup, backend=path).having(lease_publish_progress=0.1, lease_extension=60)
    options = WorkerOptions(
        module="harness.app_views", env={django_backend.PORT: str(database.port)}
    )
    worker = fleet.launch(setup, options).wait_ready(90)
    task = str(Setup(setup.broker).app().send_task("views.work", (300,)).id)

    def published() -> float:
        statement = "SELECT value FROM results WHERE key LIKE %s"
        ((value,),) = database.execute(statement, f"%{task}") or [(b"{}",)]
        state = json.loads(bytes(value)).get("result") or {}
        return float(state.get("at", 0.0))

    fleet.ledger.wait("start", task)
    eventually(lambda: _or_none(published), 30, what=lambda: worker.log)
    database.stop_now()
    worker.wait_log("is not published")
    database.start()
    since = time.time()
    eventually(lambda: published() > since, 30, what=lambda: worker.log[-3000:])


def _or_none(read: Callable[[], float]) -> float | None:
    """Read, if the table is there by now."""
    import psycopg

    with suppress(psycopg.errors.UndefinedTable):
        return read()
    return None


def _on(setup: Setup, database: PostgresServer) -> Setup:
    return replace(setup, backend="db+" + database.dsn().replace("://", "+psycopg://", 1))
