"""Checkpoints in pgmq's database: the table, its rows, and the processes that use it.

What they have in common with those on Redis is in ``test_checkpoints``.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.task.checkpoints import Checkpoints, CheckpointUnavailable
from celery_lease.task.checkpoints.stores import find
from harness.kept import TABLE, PgmqKept
from harness.waiting import eventually, free_port
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from celery_lease.brokers.pgmq.checkpoint import PgmqCheckpoints
    from harness.ledger import Ledger
    from harness.postgres import Database
    from harness.workers import WorkerFleet


def store_in(database: Database, **options: Any) -> PgmqCheckpoints:
    """Return a store with connections of its own."""
    from celery_lease.brokers.pgmq.checkpoint import PgmqCheckpoints

    return PgmqCheckpoints(options.pop("dsn", database.dsn), **options)


def test_many_that_need_the_table_at_once_create_it_once(database: Database) -> None:
    """IF NOT EXISTS alone raises in all but one of them."""
    stores = [store_in(database) for _ in range(12)]
    ready, saved = threading.Barrier(len(stores)), []

    def save(number: int) -> None:
        ready.wait()
        saved.append(stores[number].save(f"id {number}", 1, "text"))

    threads = [threading.Thread(target=save, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert saved == [True] * len(stores)
    assert len(PgmqKept(database).names()) == len(stores)


def test_somebody_who_looks_creates_no_table(database: Database) -> None:
    """Nor changes a row."""
    store = store_in(database)
    assert store.peek("id") is None
    assert database.execute("SELECT to_regclass(%s)", TABLE) == [(None,)]
    store.save("id", 1, "text")
    row = f"SELECT xmin::text, token, text FROM {TABLE}"  # noqa: S608  (ours)
    before = database.execute(row)
    assert store.peek("id") == "text"
    assert database.execute(row) == before


def test_who_may_not_create_the_table_is_given_the_statements(database: Database) -> None:
    """They are complete: with them the same store works."""
    from celery_lease.brokers.pgmq.checkpoint import NoCheckpointTable

    role = f"Poor {database.name}"
    database.execute(f'CREATE ROLE "{role}" LOGIN')
    database.execute(f'GRANT USAGE ON SCHEMA pgmq TO "{role}"')
    user = role.replace(" ", "%20")
    store = store_in(database, dsn=database.dsn.replace("postgres@", f"{user}@"))
    with pytest.raises(NoCheckpointTable, match="permission denied for schema pgmq") as refused:
        store.save("id", 1, "text")
    remedy = str(refused.value).partition("Run as a user who may: ")[2]
    database.execute(remedy.partition("; GRANT")[0])
    with pytest.raises(NoCheckpointTable, match="permission denied for table"):
        store.save("id", 1, "text")
    database.execute(remedy)
    assert store.save("id", 1, "text")
    assert store.peek("id") == "text"


def test_a_database_that_was_never_there_is_one_clear_error(database: Database) -> None:
    """In seconds, though kombu's pool waits for half a minute unless told otherwise."""
    setup = database.setup(port=free_port())
    options = setup.conf["broker_transport_options"]
    del options["pool_timeout"]
    task: Any = SimpleNamespace(app=setup.app(), backend=None)
    begun = time.monotonic()
    with pytest.raises(CheckpointUnavailable, match="the checkpoint store did not take the requ"):
        Checkpoints("id", find=lambda: find(task, "id")).save(1)
    assert time.monotonic() - begun < 20
    gc.collect()  # here, and not in a later test: kombu's pool, which it leaves behind


def test_apps_with_prefixes_share_a_database(database: Database) -> None:
    """As their queues do: one id is two tasks."""
    first, second = store_in(database, prefix="one_"), store_in(database, prefix="two_")
    first.save("id", 2, "first")
    assert second.load("id", 1) == (True, None)
    assert first.load("id", 2) == (True, "first")


def expire(database: Database, where: str = "true") -> None:
    """Let rows be past their expiry."""
    expired = f"UPDATE {TABLE} SET expires = now() - interval '1 s' WHERE {where}"  # noqa: S608
    database.execute(expired)


def test_an_expired_row_is_nothing(database: Database) -> None:
    """Its text is never returned, its token refuses nobody, and retiring does not revive it."""
    store = store_in(database, expires=500)
    store.save("id", 9, "old")
    expire(database)
    assert store.peek("id") is None
    assert store.retire("id", 1)
    assert store.peek("id") is None
    assert store.load("id", 1) == (True, None)
    assert store.load("id", 1) == (True, None), "nor does reading it"
    store.save("id", 9, "old")
    expire(database)
    assert store.save("id", 1, "new")
    assert store.load("id", 1) == (True, "new")


def test_writes_delete_expired_rows_in_batches(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once again while batches are full, then seldom; other rows stay, locked ones wait."""
    import psycopg

    from celery_lease.brokers.pgmq import checkpoint
    from unit.fakes import FakeClock

    monkeypatch.setattr(checkpoint, "BATCH", 10)
    clock = FakeClock()
    store = store_in(database, clock=clock)
    for number in range(25):
        store.save(f"old {number}", 1, "text")
    expire(database)
    kept = PgmqKept(database)

    def left() -> int:
        return sum(name.startswith("old") for name in kept.names())

    clock.advance(checkpoint.SWEEP_EVERY)
    with psycopg.connect(database.dsn) as somebody:
        somebody.execute(f"SELECT 1 FROM {TABLE} WHERE id = 'old 3' FOR UPDATE")  # noqa: S608
        counts = []
        for _ in range(4):
            store.save("new", 1, "text")
            counts.append(left())
        assert counts == [15, 5, 1, 1]
    store.save("new", 1, "text")
    assert left() == 1, "not each write looks for them"
    clock.advance(checkpoint.SWEEP_EVERY)
    store.forget("new", 1)
    assert kept.names() == ["new"]


def test_a_forked_process_has_connections_of_its_own(database: Database) -> None:
    """The parent's are neither used nor closed in it."""
    store = store_in(database)
    store.save("id", 1, "parent")

    def backend() -> int:
        """Return the server's process of the idle connection."""
        ((pid,),) = database.execute(
            "SELECT min(pid) FROM pg_stat_activity WHERE application_name = 'celery-lease' "
            "AND datname = %s",
            database.name,
        )
        return int(pid)

    before = backend()
    if (child := os.fork()) == 0:
        status = 1
        try:
            status = 0 if store.save("id", 2, "child") else 2
            del store
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert store.load("id", 3) == (True, "child")
    assert backend() == before
    for connections in store._connections.values():
        connections.close()


@pytest.mark.chaos
@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet"])
def test_a_loop_goes_on_after_its_worker_was_killed(
    database: Database, fleet: WorkerFleet, ledger: Ledger, pool: str
) -> None:
    """In all pools, two loops at a time, without any result backend."""
    setup = database.setup().having(
        lease_extension=3, lease_reaper_interval=1, worker_enable_remote_control=False
    )
    options = WorkerOptions(module="harness.app_checkpoints", pool=pool, concurrency=2)
    first = fleet.start(setup, options)
    send = setup.app().send_task
    tasks = [send("checkpoints.rows", (40, 0.5)).id for _ in range(2)]
    for task_id in tasks:
        ledger.wait("row", task_id, count=20)
    first.kill_group()
    done = {task_id: ledger.count("row", task_id) for task_id in tasks}
    fleet.start(setup, options)
    eventually(lambda: database.counts() == (0, 0), 40, what="both are done")
    kept = PgmqKept(database)
    for task_id in tasks:
        again = [each.facts["row"] for each in ledger.entries("row", task_id)][done[task_id] :]
        assert again == [*range(again[0], 41)], "it goes on in the middle, and to the end"
        assert 10 < again[0] <= done[task_id] + 1
        eventually(lambda: kept.fields(task_id) == ["token"], what="removal of the place")  # noqa: B023
