"""PostgreSQL restarts, fails over, kills connections and has none left: leases go on."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from celery_lease.core.delivery import Answer
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.ledger import Ledger
    from harness.postgres import PostgresServer
    from harness.workers import WorkerFleet

pytestmark = pytest.mark.chaos

FEW = 25  #: connections that the server of a test takes


@pytest.fixture
def server(postgres_programs: Path) -> Iterator[PostgresServer]:
    """A server for one test, to be restarted; what was committed survives that."""
    from harness.postgres import PostgresServer

    options = (f"--max_connections={FEW}", "--superuser_reserved_connections=0")
    with PostgresServer(postgres_programs, options).create() as server:
        yield server


def options(**more: Any) -> WorkerOptions:
    """Return the command line of a worker with leased tasks."""
    return WorkerOptions(module="harness.app_leased", **more)


def test_a_task_runs_on_through_killed_connections_and_a_restart(
    server: PostgresServer, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """It is run once and acknowledged once, and the worker takes the next one."""
    database = server.fresh_database()
    setup = database.setup()
    worker = fleet.start(setup, options(concurrency=2))
    send = setup.app().send_task
    # Longer than a restart on a busy machine, and shorter than the task.
    lease = {"lease": {"lease_extension": 10}}
    through_both = send("any.work", (14.0,), headers=lease)
    ledger.wait("start", through_both.id)
    assert database.cut("celery-lease") > 0, "the driver's own connections"
    assert database.cut() > 0, "and kombu's"
    ends_meanwhile = send("any.patient", (5.0,))
    ledger.wait("start", ends_meanwhile.id, within=40)
    server.stop_now()
    server.start()
    ledger.wait("end", count=2, within=60)
    eventually(lambda: database.counts() == (0, 0), 30, what="both are deleted")
    following = send("any.work", (0.1,))
    ledger.wait("end", following.id, within=40)
    eventually(lambda: database.counts() == (0, 0), what="it is deleted")
    assert [ledger.count("start", task.id) for task in (through_both, ends_meanwhile)] == [1, 1]
    assert worker.returncode is None


def test_a_lease_survives_a_fail_over(
    server: PostgresServer, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """The standby that takes over the address knows the lease, and the task's end."""
    from harness.postgres import Standby

    database = server.fresh_database()
    setup = database.setup()
    with Standby(server) as standby:
        fleet.start(setup, options())
        task = setup.app().send_task("any.patient", (12.0,))
        ledger.wait("start", task.id)
        in_step = "SELECT sent_lsn = replay_lsn FROM pg_stat_replication"
        eventually(lambda: server.execute(in_step) == [(True,)], what="standby in step")
        server.stop_now()
        standby.take_over(server)
        ledger.wait("end", task.id, within=60)
        eventually(lambda: database.counts() == (0, 0), 30, what="it is deleted")
        assert ledger.count("start") == 1


def take_all(server: PostgresServer, others: contextlib.ExitStack) -> None:
    """Connect until the server takes no more."""
    with contextlib.suppress(psycopg.OperationalError):
        while True:
            others.enter_context(psycopg.connect(server.dsn()))


def test_a_server_without_free_connections_is_no_answer(server: PostgresServer) -> None:
    """A lease is neither renewed nor lost by that, and is extended when one is free."""
    database = server.fresh_database()
    bench = database.bench()
    desk = bench.desk(seconds=60)
    bench.publish("a")
    (message,) = desk.receive()
    desk.stop()
    desk.driver.close()
    with contextlib.ExitStack() as others:
        take_all(server, others)
        assert desk.extend(message) is Answer.UNKNOWN
        assert desk.driver.complete([message.claim.tag]) == [Answer.UNKNOWN]
    eventually(lambda: desk.extend(message) is Answer.HELD, every=0.2)
    bench.close()


@pytest.mark.parametrize(
    ("prepared", "queue", "reason"),
    [
        (False, "celery", "pgmq is not in this database"),
        (True, "q" * 43, "has 48 characters at pgmq, and it allows 47"),
    ],
)
def test_a_worker_that_cannot_work_there_says_why_in_one_line(
    postgres: PostgresServer, fleet: WorkerFleet, prepared: bool, queue: str, reason: str
) -> None:
    """A database without pgmq, and a queue whose dead letters would have nowhere to go."""
    database = postgres.fresh_database() if prepared else postgres.bare_database()
    setup = database.setup().having(worker_enable_remote_control=False, task_default_queue=queue)
    worker = fleet.launch(setup, options(pool="solo", queues=queue))
    assert worker.wait(60) == 1
    assert f"worker not started: {'wrong lease' if prepared else ''}" in worker.log
    assert reason in worker.log
    assert "Traceback" not in worker.log


def test_a_server_that_is_impatient_with_statements_and_locks_is_lived_with(
    postgres: PostgresServer, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """Its ``statement_timeout`` is shorter than a poll, and it would end each one otherwise."""
    database = postgres.fresh_database()
    limits = ("statement_timeout = '900ms'", "lock_timeout = '100ms'")
    for limit in limits:
        database.execute(f"ALTER DATABASE {database.name} SET {limit}")
    setup = database.setup()
    worker = fleet.start(setup, options())
    worker.wait_log("wait_time_seconds is 0: the server ends statements after 900 ms")
    send = setup.app().send_task
    first = send("any.work", (6.0,))
    ledger.wait("start", first.id)
    with psycopg.connect(database.dsn) as migration:
        migration.execute("SET statement_timeout = 0; SET lock_timeout = 0")
        migration.execute("LOCK TABLE pgmq.q_celery IN ACCESS EXCLUSIVE MODE")
        migration.execute("SELECT pg_sleep(1)")
    second = send("any.work", (0.1,))
    for task in (first, second):
        ledger.wait("end", task.id, within=40)
        assert ledger.count("start", task.id) == 1
    eventually(lambda: database.counts() == (0, 0), 30, what="both are deleted")
    assert "canceling statement due to statement timeout" not in worker.log
    assert worker.returncode is None


def test_a_worker_lives_through_a_time_in_which_its_server_only_reads(
    postgres: PostgresServer, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """Between a fail-over and its end, say. Kombu does not take that for a lost connection."""
    database = postgres.fresh_database()
    setup = database.setup()
    worker = fleet.start(setup, options())
    read_only = f"ALTER DATABASE {database.name} SET default_transaction_read_only = "
    postgres.execute(read_only + "on")
    database.cut()
    worker.wait_log("in a read-only transaction")
    worker.wait_log("Connection to broker lost", 30)
    postgres.execute(read_only + "off")
    database.cut()
    task = setup.app().send_task("any.work", (0.1,))
    ledger.wait("end", task.id, within=60)
    eventually(lambda: database.counts() == (0, 0), 30, what="it is deleted")
    assert worker.returncode is None
