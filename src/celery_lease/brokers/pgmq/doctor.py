"""Checks of a PostgreSQL database with pgmq: its durability, its limits, its queues."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from celery_lease.brokers.pgmq import checkpoint, key_statements
from celery_lease.brokers.pgmq.connections import CONNECT_TIMEOUT
from celery_lease.brokers.pgmq.names import LONGEST, unfit_name
from celery_lease.brokers.pgmq.tables import rights
from celery_lease.core.clock import SystemClock
from celery_lease.core.findings import Examined, Finding, error, notice, ok, warning
from celery_lease.core.offset import Offset
from celery_lease.core.words import page

if TYPE_CHECKING:
    from collections.abc import Iterator


#: The server may end a statement for a thousand leases below this limit; in milliseconds.
BRIEF = 1000
#: The consequence of a limit below that.
STATEMENT_ENDED = (
    "One statement extends all leases of a worker. Ended early, none of them is extended."
)
LOCK_NOT_GIVEN = (
    "While a queue's table is locked (a migration, VACUUM FULL), a worker that reads from "
    "it connects anew each time; leases are asked for again, up to their deadlines."
)
NO_CHECKPOINTS = (
    "context.checkpoint() and context.iterate() raise CheckpointUnavailable, unless the result "
    "backend keeps checkpoints."
)
NO_KEYS = "A worker whose tasks have a lease_key does not start, and a call with one fails."
#: Share of the server's connections above which workers may find none free.
CROWDED = 0.9

_FACTS = """
SELECT current_setting('server_version') AS version, pg_is_in_recovery() AS standby,
    current_setting('transaction_read_only') AS read_only,
    (SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout') AS timeout,
    (SELECT setting::int FROM pg_settings WHERE name = 'lock_timeout') AS lock_timeout,
    current_setting('synchronous_commit') AS commit, current_setting('fsync') AS fsync,
    (SELECT extversion FROM pg_extension WHERE extname = 'pgmq') AS pgmq,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS used,
    current_setting('max_connections')::int AS most
"""
_QUEUES = """
SELECT queue_name, is_partitioned, is_unlogged, (
    SELECT bool_and(has_table_privilege(oid, privilege))
    FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege
) AS is_ours
FROM pgmq.meta LEFT JOIN pg_class
    ON relname = 'q_' || lower(queue_name) AND relnamespace = 'pgmq'::regnamespace
"""


def clock(case: Examined) -> Offset | None:
    """Return the difference between the server's clock and this host's."""
    with _connection(case) as connection:
        asked = SystemClock().wall().timestamp()
        (row,) = connection.execute("SELECT extract(epoch FROM clock_timestamp()) AS now")
        return Offset.of(float(row["now"]), asked, SystemClock().wall().timestamp())


def check(case: Examined) -> Iterator[Finding]:
    """Yield the findings about the database and the queues."""
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
                f"CREATE EXTENSION pgmq, or install its SQL: {page('pgmq')}",
            )
        else:
            yield from _queues(case, queues)
            yield _table(connection, checkpoint, "checkpoints", NO_CHECKPOINTS)
            yield _table(connection, key_statements, "keys", NO_KEYS)
            yield from _index(connection)


@contextmanager
def _connection(case: Examined) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """Connect as the driver does."""
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
    elif facts["read_only"] == "on":
        yield error(
            "pgmq.role",
            "transactions are read-only (default_transaction_read_only)",
            "The server refuses every write.",
            "ALTER ROLE ... SET default_transaction_read_only = off, for the broker's user.",
        )
    yield _brief("statement_timeout", facts["timeout"], STATEMENT_ENDED)
    yield _brief("lock_timeout", facts["lock_timeout"], LOCK_NOT_GIVEN)
    yield _durable(facts["commit"], facts["fsync"])
    used, most = facts["used"], facts["most"]
    if used > CROWDED * most:
        yield warning(
            "pgmq.connections",
            f"{used} of {most} connections are in use",
            "A worker that finds none cannot extend its leases.",
            "Raise max_connections, or use a pooler. A worker takes up to 4 beside kombu's own.",
        )


def _brief(setting: str, timeout: int, why: str) -> Finding:
    """Return the finding about a limit of the database, in milliseconds; 0: none."""
    check = f"pgmq.{setting}"
    what = f"{setting} is {timeout} ms" if timeout else f"no {setting}"
    if 0 < timeout < BRIEF:
        remedy = f"Raise it for the broker's user: ALTER ROLE ... SET {setting} = '5s'."
        return warning(check, what, why, remedy)
    return ok(check, what)


def _remote_control(case: Examined) -> Finding:
    conf = case.app.conf
    if not conf.worker_enable_remote_control:
        return ok("pgmq.remote_control", "worker_enable_remote_control is off")
    room = LONGEST - len(case.channel.canonical_queue_name(f".{conf.control_exchange}.pidbox"))
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


def _queues(case: Examined, rows: list[dict[str, Any]]) -> Iterator[Finding]:
    known = {str(row["queue_name"]): row for row in rows}
    for queue in case.queues:
        yield from _names(case, queue)
        name = case.channel.canonical_queue_name(queue)
        if name not in known:
            yield notice("pgmq.queue", f"queue {name} does not exist yet: the first use makes it")
            continue
        if known[name]["is_ours"] is False:
            yield error(
                "pgmq.queue",
                f"this user may not read and write queue {name}",
                "A worker with the same user takes no message of it.",
                "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgmq TO ...",
            )
        elif known[name]["is_unlogged"]:
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


def _table(
    connection: psycopg.Connection[dict[str, Any]], module: Any, what: str, why: str
) -> Finding:
    """Return the finding about a table of celery-lease, whose statements are a *module*'s."""
    (facts,) = connection.execute(rights(module.TABLE))
    if facts["is_ours"]:
        return ok(f"pgmq.{what}", f"this user may keep {what} in {module.TABLE}")
    return notice(
        f"pgmq.{what}",
        f"this user may not create or use {module.TABLE}",
        why,
        f"As a user who may: {module.CREATE}; {module.GRANT} {facts['user']}",
    )


def _index(connection: psycopg.Connection[dict[str, Any]]) -> Iterator[Finding]:
    """Yield a finding if the table of keys is an older version's, without an index of now."""
    table, index = key_statements.TABLE, key_statements.INDEX
    is_there = f"SELECT to_regclass('{table}') IS NULL OR to_regclass('{index}') IS NOT NULL AS it"
    (facts,) = connection.execute(is_there)
    if not facts["it"]:
        yield notice(
            "pgmq.keys",
            f"{table} has no index {index.partition('.')[2]}",
            "Each look for parked messages reads the whole table.",
            "A worker creates it at its start if its user owns the table. As the owner, without a "
            f"lock: {key_statements.ADD_INDEX}",
        )


def _names(case: Examined, queue: str) -> Iterator[Finding]:
    """Yield an error for a name of a queue, or of its dead-letter queue, that pgmq refuses."""
    dead = case.loaded.dead_letter_queue_of(queue) if case.loaded else queue
    for name in dict.fromkeys((queue, dead)):
        if reason := unfit_name(case.channel.connection.client, name):
            yield error(
                "pgmq.queue_name",
                f"queue {name}, {reason}",
                "A worker does not start: it could not consume, or dead-letter what is lost too "
                "often.",
                "Shorten the queue's name or queue_name_prefix, or set lease_dead_letter_queue.",
            )
