"""Whether a PostgreSQL database with pgmq keeps messages, and answers statements of leases."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from celery_lease.brokers.pgmq.connections import CONNECT_TIMEOUT
from celery_lease.cli.doctor.findings import Finding, error, notice, ok, warning
from celery_lease.cli.doctor.offset import Offset
from celery_lease.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_lease.cli.doctor.case import Case

#: Below this a statement for a thousand leases may be ended by the server; milliseconds.
BRIEF = 1000
#: Share of the server's connections above which workers may find none.
CROWDED = 0.9
#: Characters that pgmq allows in the name of a queue.
LONGEST_NAME = 47

_FACTS = """
SELECT current_setting('server_version') AS version, pg_is_in_recovery() AS standby,
    (SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout') AS timeout,
    current_setting('synchronous_commit') AS commit, current_setting('fsync') AS fsync,
    (SELECT extversion FROM pg_extension WHERE extname = 'pgmq') AS pgmq,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS used,
    current_setting('max_connections')::int AS most
"""
_QUEUES = "SELECT queue_name, is_partitioned, is_unlogged FROM pgmq.meta"


def clock(case: Case) -> Offset | None:
    """Return by how much the server's clock differs from this host's."""
    with _connection(case) as connection:
        asked = SystemClock().wall().timestamp()
        (row,) = connection.execute("SELECT extract(epoch FROM clock_timestamp()) AS now")
        return Offset.of(float(row["now"]), asked, SystemClock().wall().timestamp())


def check(case: Case) -> Iterator[Finding]:
    """Yield what is to be said of the database and the queues."""
    with _connection(case) as connection:
        (facts,) = connection.execute(_FACTS)
        yield from _server(facts)
        yield _remote_control(case)
        try:
            queues = connection.execute(_QUEUES).fetchall()
        except psycopg.Error as exc:
            yield error(
                "pgmq.installed",
                f"pgmq is not in this database: {str(exc).splitlines()[0]}",
                "There is nothing to keep messages in.",
                "CREATE EXTENSION pgmq, or install its SQL as docs/pgmq.md has it.",
            )
        else:
            yield from _queues(case, queues)


@contextmanager
def _connection(case: Case) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """Connect as the driver does, with an end to every statement."""
    with psycopg.connect(
        case.channel.pgmq.config.dsn,
        autocommit=True,
        prepare_threshold=None,
        connect_timeout=CONNECT_TIMEOUT,
        application_name="celery-lease-doctor",
        row_factory=dict_row,
    ) as connection:
        yield connection


def _server(facts: dict[str, Any]) -> Iterator[Finding]:
    pgmq = f"extension pgmq {facts['pgmq']}" if facts["pgmq"] else "pgmq as plain SQL"
    yield ok("pgmq.version", f"the server is PostgreSQL {facts['version']}, {pgmq}")
    if facts["standby"]:
        yield error(
            "pgmq.role",
            "the server is a standby",
            "It refuses every write.",
            "Point broker_url at the primary.",
        )
    yield _statement_timeout(facts["timeout"])
    yield _durable(facts["commit"], facts["fsync"])
    used, most = facts["used"], facts["most"]
    if used > CROWDED * most:
        yield warning(
            "pgmq.connections",
            f"{used} of {most} connections are in use",
            "A worker that finds none cannot extend its leases.",
            "Raise max_connections, or use a pooler. A worker takes up to 4 beside kombu's own.",
        )


def _statement_timeout(timeout: int) -> Finding:
    what = f"statement_timeout is {timeout} ms" if timeout else "no statement_timeout"
    if 0 < timeout < BRIEF:
        return warning(
            "pgmq.statement_timeout",
            what,
            "One statement extends all leases of a worker. Ended early, none of them is extended.",
            "Raise it for the broker's user: ALTER ROLE ... SET statement_timeout = '5s'.",
        )
    return ok("pgmq.statement_timeout", what)


def _remote_control(case: Case) -> Finding:
    conf = case.app.conf
    if not conf.worker_enable_remote_control:
        return ok("pgmq.remote_control", "worker_enable_remote_control is off")
    room = LONGEST_NAME - len(case.channel.canonical_queue_name(f".{conf.control_exchange}.pidbox"))
    return warning(
        "pgmq.remote_control",
        "worker_enable_remote_control is on",
        f"It does not work on pgmq, and a worker whose node name has more than {room} characters, "
        "as pods' names make it, does not start.",
        "Set worker_enable_remote_control = False.",
    )


def _durable(commit: str, fsync: str) -> Finding:
    if fsync == "on" and commit != "off":
        return ok("pgmq.durability", f"commits are durable (synchronous_commit {commit})")
    return warning(
        "pgmq.durability",
        f"synchronous_commit is {commit}, fsync is {fsync}",
        "A server that crashes forgets the last messages and acknowledgements.",
        "Set both to on for the broker's database.",
    )


def _queues(case: Case, rows: list[dict[str, Any]]) -> Iterator[Finding]:
    known = {str(row["queue_name"]): row for row in rows}
    for queue in case.queues:
        name = case.channel.canonical_queue_name(queue)
        if name not in known:
            yield notice("pgmq.queue", f"queue {name} does not exist yet: the first use makes it")
            continue
        if known[name]["is_unlogged"]:
            yield warning(
                "pgmq.queue",
                f"queue {name} is unlogged",
                "A server that crashes empties it.",
                "Create it with pgmq.create(), not pgmq.create_unlogged().",
            )
        elif known[name]["is_partitioned"]:
            yield notice(
                "pgmq.queue",
                f"queue {name} is partitioned",
                "Rows are looked up by msg_id in every partition, and pg_partman may drop a "
                "partition that still has messages in it.",
                "Keep partitions few, and their retention longer than tasks wait and run.",
            )
        else:
            yield ok("pgmq.queue", f"queue {name} is an ordinary one")
