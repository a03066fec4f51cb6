"""The driver's own connections to PostgreSQL, bounded in number and in time.

Each statement is a transaction of its own, and nothing is set on a connection, so a pooler in
transaction mode may stand between. The client library prepares what is run often, since planning a
statement takes the server longer than running it. Behind a pooler that does not support that, the
server does not know the statement; from then on nothing is prepared. A connection with an error is
closed; the next call connects to the server that is the primary by then.

Uses of psycopg internals, as read in 3.2 and 3.3: a connection's ``_prepared`` counts its
statements in ``_prepared_idx``, and names them by that.
"""

from __future__ import annotations

import secrets
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql, waiting

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from celery_lease.core.clock import Clock

#: Calls under way at once, each on a connection of its own; further calls wait.
CONNECTIONS = 4
#: Longest wait for a connection, in seconds; the shortest that the client library allows.
CONNECT_TIMEOUT = 2
#: Runs of a statement on a connection before it is prepared there.
PREPARED_AFTER = 5


def yield_to_greenlets() -> None:
    """Make psycopg wait for a server in Python where eventlet has patched it, as under gevent.

    Psycopg 3 detects gevent by itself. Under eventlet it waits in C, also in kombu's reads, and no
    other greenlet of the worker runs meanwhile: tasks do not beat and leases are not extended.
    """
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.is_monkey_patched("select"):
        waiting.wait = waiting.wait_select


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time, or no connection was free."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose statements end by a time, even if the server or the network hangs."""

    clock: Clock
    ends = 0.0  # clock reading; 0: no bound

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a step of the protocol, but not past :attr:`ends`."""
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        # The library wakes up every tenth of a second, even without data.
        try:
            wanted = next(steps)
            while True:
                ready = yield wanted
                if self.ends and self.clock.now() >= self.ends:
                    raise NoAnswer("the server did not answer in time")
                wanted = steps.send(ready)
        except StopIteration as done:
            return done.value


class Connections:
    """Runs statements, each on a free connection. Any thread may use it.

    Not for use across a fork: a child creates its own.
    """

    def __init__(self, conninfo: str, clock: Clock) -> None:
        self._conninfo = conninfo
        self._clock = clock
        self._turns = threading.BoundedSemaphore(CONNECTIONS)
        self._idle: deque[BoundedConnection] = deque()  # its operations are atomic
        self._prepared_after: int | None = PREPARED_AFTER  # None: never; any thread may set that

    def run(
        self,
        statement: sql.SQL | sql.Composed,
        parameters: Sequence[object],
        *,
        timeout: float,
        then: sql.Composable | None = None,
    ) -> list[tuple[Any, ...]]:
        """Return a statement's rows within *timeout* seconds, plus the time of a new connection.

        *then* are statements that are sent with it, for the same transaction; their rows follow.

        Raises:
            psycopg.Error: There was no answer; the statement may or may not have taken effect.
        """
        ends = self._clock.now() + timeout
        if not self._turns.acquire(timeout=max(timeout, 0.0)):
            raise NoAnswer("all connections are busy")
        try:
            return self._run(statement, parameters, ends, then)
        finally:
            self._turns.release()

    def close(self) -> None:
        """Close idle connections; later calls connect again."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _run(
        self,
        statement: sql.SQL | sql.Composed,
        parameters: Sequence[object],
        ends: float,
        then: sql.Composable | None,
    ) -> list[tuple[Any, ...]]:
        while True:
            connection, used = self._take()
            connection.ends = ends
            try:
                if then is None:
                    cursor = connection.execute(statement, parameters)
                    rows = cursor.fetchall() if cursor.description else []
                else:
                    rows = _run_together(connection, statement, parameters, then)
            except psycopg.errors.InvalidSqlStatementName:  # another session's
                connection.close()
                if connection.prepare_threshold is None:
                    raise
                self._prepared_after = None
                self.close()
                continue
            except psycopg.Error:
                cut = connection.broken
                connection.close()
                # An idle connection may have been cut long ago: every statement may be repeated.
                if used and cut and self._clock.now() < ends:
                    continue
                raise
            self._idle.append(connection)
            return rows

    def _take(self) -> tuple[BoundedConnection, bool]:
        with suppress(IndexError):
            return self._idle.pop(), True
        connection = BoundedConnection.connect(
            self._conninfo,
            autocommit=True,
            prepare_threshold=self._prepared_after,
            connect_timeout=CONNECT_TIMEOUT,
            application_name="celery-lease",
        )
        connection.clock = self._clock
        _name_its_own(connection)
        return connection, False


def _name_its_own(connection: BoundedConnection) -> None:
    """Let no other connection's prepared statement have the name of one of these.

    The library counts from 0 on each connection. Behind a pooler that passes sessions around, the
    server would run another program's statement of that number.
    """
    statements: Any = getattr(connection, "_prepared", None)
    if hasattr(statements, "_prepared_idx"):
        statements._prepared_idx = secrets.randbits(60)  # noqa: SLF001
    else:
        connection.prepare_threshold = None


def _run_together(
    connection: BoundedConnection,
    statement: sql.SQL | sql.Composed,
    parameters: Sequence[object],
    then: sql.Composable,
) -> list[tuple[Any, ...]]:
    """Run several statements as one text, which the server makes one transaction."""
    first = psycopg.ClientCursor(connection).mogrify(statement, parameters)
    text = f"{first}; {then.as_string(connection)}"
    cursor = connection.execute(text.encode(connection.info.encoding), prepare=False)
    rows = cursor.fetchall() if cursor.description else []
    while cursor.nextset():
        rows += cursor.fetchall() if cursor.description else []
    return rows
