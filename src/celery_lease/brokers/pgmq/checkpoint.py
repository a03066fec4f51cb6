"""Checkpoints in a table of pgmq's database.

One row for each task id, and one statement that compares fencing tokens and writes. The table is
created when it is first missing. Rows past their expiry count as missing; writes delete them in
small batches.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors, sql

from celery_lease.brokers.checkpoints import FENCE_KEPT, kept
from celery_lease.brokers.pgmq.connections import Connections, yield_to_greenlets
from celery_lease.brokers.pgmq.tables import grant, making
from celery_lease.core.clock import Clock, SystemClock

if TYPE_CHECKING:
    _Statement = sql.SQL | sql.Composed

TABLE = "pgmq.celery_lease_checkpoints"

#: Longest wait for an answer, in seconds.
ANSWER_TIMEOUT = 5.0
#: Expired rows deleted after one write, and the least seconds until the next look for them.
BATCH, SWEEP_EVERY = 100, 60.0

#: Creates the table, for the error and the documentation, too.
CREATE = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (id text PRIMARY KEY, token bigint NOT NULL, "
    "text text, expires timestamptz NOT NULL); "
    f"CREATE INDEX IF NOT EXISTS celery_lease_checkpoints_expires ON {TABLE} (expires)"
)
#: Lets another user keep checkpoints in it.
GRANT = grant(TABLE)
_CREATE = making(TABLE, CREATE)
_NAMES = {
    "table": sql.Identifier(*TABLE.split(".")),
    "now": sql.SQL("statement_timestamp()"),
    "expiry": sql.SQL(
        "coalesce(statement_timestamp() + make_interval(secs => %s::float8), 'infinity')"
    ),
}
#: Takes id, token, text and seconds; no row: a run with a larger token has used the checkpoint.
_PUT = """
    INSERT INTO {table} AS old (id, token, text, expires) VALUES (%s, %s, %s, {expiry})
    ON CONFLICT (id) DO UPDATE
        SET token = excluded.token, text = {text}, expires = excluded.expires
        WHERE old.token <= excluded.token OR old.expires <= {now}
    RETURNING text"""
_SAVE = sql.SQL(_PUT).format(text=sql.SQL("excluded.text"), **_NAMES)
#: Loading leaves the token too: whoever held the task before cannot save behind the reader's back.
_LOAD = sql.SQL(_PUT).format(
    text=sql.SQL("CASE WHEN old.expires > statement_timestamp() THEN old.text END"), **_NAMES
)
_PEEK = sql.SQL("SELECT text FROM {table} WHERE id = %s AND expires > {now}").format(**_NAMES)
#: Takes token, seconds, id, token and id.
_RETIRE = sql.SQL("""
    WITH held AS (
        UPDATE {table} SET token = %s, expires = {expiry}
        WHERE id = %s AND token <= %s AND expires > {now} RETURNING id
    )
    SELECT EXISTS (SELECT FROM held)
        OR NOT EXISTS (SELECT FROM {table} WHERE id = %s AND expires > {now})""").format(**_NAMES)
#: A statement of its own, which waits for no row: within a save it could deadlock with another.
_SWEEP = sql.SQL("""
    WITH gone AS (
        DELETE FROM {table} WHERE id = ANY (ARRAY(
            SELECT id FROM {table} WHERE expires <= {now}
            ORDER BY expires LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING id
    )
    SELECT count(*) FROM gone""").format(**_NAMES)
_USER = sql.SQL("SELECT quote_ident(current_user)")


class NoCheckpointTable(PermissionError):
    """The user may not create or use the table; the text has the SQL to run."""


class PgmqCheckpoints:
    """Checkpoints in one database. Thread-safe, and safe across a fork."""

    name = "the pgmq broker"

    def __init__(
        self, conninfo: str, *, prefix: str = "", expires: int = 0, clock: Clock | None = None
    ) -> None:
        """*prefix* tells apps apart that share a database; *expires* is seconds, 0 for never."""
        self._conninfo = conninfo
        self._prefix = prefix
        self._kept, self._failure_kept = kept(expires), expires
        self._clock = clock or SystemClock()
        self._sweep_at = 0.0
        # By process: a forked one neither uses nor closes those of its parent.
        self._connections: dict[int, Connections] = {}
        weakref.finalize(self, _close, self._connections)

    def save(self, task_id: str, token: int, text: str) -> bool:
        return self._write(task_id, token, text, self._kept)

    def load(self, task_id: str, token: int) -> tuple[bool, str | bytes | None]:
        rows = self._run(_LOAD, self._prefix + task_id, token, None, self._kept or None)
        return (True, rows[0][0]) if rows else (False, None)

    def peek(self, task_id: str) -> str | bytes | None:
        """Return the text, if any; nothing is changed, and no table created."""
        with suppress(errors.UndefinedTable):
            for (text,) in self._ask(_PEEK, self._prefix + task_id):
                return text  # type: ignore[no-any-return]
        return None

    def forget(self, task_id: str, token: int) -> bool:
        """Delete the text; False as in :meth:`save`.

        The token stays for a while, against a former holder that was paused before it saved.
        """
        return self._write(task_id, token, None, FENCE_KEPT)

    def retire(self, task_id: str, token: int) -> bool:
        id_ = self._prefix + task_id
        ((held,),) = self._run(_RETIRE, token, self._failure_kept or None, id_, token, id_)
        return bool(held)

    def _write(self, task_id: str, token: int, text: str | None, seconds: int) -> bool:
        rows = self._run(_SAVE, self._prefix + task_id, token, text, seconds or None)
        self._sweep()
        return bool(rows)

    def _sweep(self) -> None:
        """Delete some expired rows, if it is time to; without an answer a later write does it."""
        if (now := self._clock.now()) < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_EVERY
        with suppress(psycopg.Error, OSError):
            ((gone,),) = self._execute(_SWEEP, BATCH)
            if gone == BATCH:
                self._sweep_at = now

    def _run(self, statement: _Statement, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement, after the creation of the table if it is missing."""
        try:
            return self._ask(statement, *values)
        except errors.UndefinedTable:
            self._ask(_CREATE)
        return self._ask(statement, *values)

    def _ask(self, statement: _Statement, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement; once more after a failure that may pass: all may be repeated."""
        try:
            try:
                return self._execute(statement, *values)
            except (psycopg.OperationalError, errors.ReadOnlySqlTransaction):  # as of a standby
                return self._execute(statement, *values)
        except errors.InsufficientPrivilege as exc:
            raise self._refusal(exc) from exc

    def _refusal(self, exc: errors.InsufficientPrivilege) -> NoCheckpointTable:
        ((user,),) = self._execute(_USER)
        why = str(exc).partition("\n")[0]
        return NoCheckpointTable(
            f"this user may not create or use the table of checkpoints ({why}). Run as a user who "
            f"may: {CREATE}; {GRANT} {user}"
        )

    def _execute(self, statement: _Statement, *values: object) -> list[tuple[Any, ...]]:
        pid = os.getpid()
        if pid not in self._connections:
            self._connections.setdefault(pid, Connections(self._conninfo, self._clock))
        return self._connections[pid].run(statement, values, timeout=ANSWER_TIMEOUT)


def _close(connections: dict[int, Connections]) -> None:
    """Close the connections of this process."""
    if os.getpid() in connections:
        connections[os.getpid()].close()


def connect(channel: Any, expires: int) -> PgmqCheckpoints:
    """Store checkpoints in the database of a kombu *channel*; it does not connect yet."""
    yield_to_greenlets()
    return PgmqCheckpoints(
        channel.pgmq.config.dsn, prefix=channel.queue_name_prefix, expires=expires
    )
