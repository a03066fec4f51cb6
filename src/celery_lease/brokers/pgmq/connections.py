"""Connections to PostgreSQL of the driver's own, bounded in number and in time.

Each statement is a transaction of its own. Nothing is set on a connection and nothing prepared on
it, so a pooler in transaction mode may stand between. A connection on which anything went wrong is
closed; the next call finds its way to the server that is in charge by then.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from psycopg import sql

    from celery_lease.core.clock import Clock

#: Calls under way at once, each on a connection of its own; pools of many threads have to queue.
CONNECTIONS = 4
#: Longest wait for a connection, in seconds; the client library knows no shorter one.
CONNECT_TIMEOUT = 2


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time, or no connection was free."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose statements end at a time, whatever the server or the network does."""

    clock: Clock
    ends = 0.0  # clock reading; 0: no bound

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a step of the protocol, but not past :attr:`ends`."""
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        # The library looks in every tenth of a second, also when nothing came.
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

    Not for use across a fork: a child makes its own.
    """

    def __init__(self, conninfo: str, clock: Clock) -> None:
        self._conninfo = conninfo
        self._clock = clock
        self._turns = threading.BoundedSemaphore(CONNECTIONS)
        self._idle: deque[BoundedConnection] = deque()  # its steps are atomic

    def run(
        self, statement: sql.Composed, parameters: Sequence[object], *, timeout: float
    ) -> list[tuple[Any, ...]]:
        """Return a statement's rows; ends within *timeout* seconds, or when connecting does.

        Raises:
            psycopg.Error: It was not answered; it may or may not have been done.
        """
        ends = self._clock.now() + timeout
        if not self._turns.acquire(timeout=max(timeout, 0.0)):
            raise NoAnswer("all connections are busy")
        try:
            return self._run(statement, parameters, ends)
        finally:
            self._turns.release()

    def close(self) -> None:
        """Close what is idle; later calls connect anew."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _run(
        self, statement: sql.Composed, parameters: Sequence[object], ends: float
    ) -> list[tuple[Any, ...]]:
        while True:
            connection, used = self._take()
            connection.ends = ends
            try:
                cursor = connection.execute(statement, parameters)
                rows = cursor.fetchall() if cursor.description else []
            except psycopg.Error:
                cut = connection.broken
                connection.close()
                # One that was idle may have been cut long ago: every statement may be repeated.
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
            prepare_threshold=None,
            connect_timeout=CONNECT_TIMEOUT,
            application_name="celery-lease",
        )
        connection.clock = self._clock
        return connection, False
