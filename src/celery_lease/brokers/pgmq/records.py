"""Reads the database for commands: held messages, and the place of a message in its queue.

It only reads, in pages. A row shows until when its message is hidden and how often it was read, but
neither its holder nor whether its task is leased.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from celery_lease.brokers.pgmq.fence import Delivery
from celery_lease.brokers.pgmq.statements import headers, table
from celery_lease.core.records import Recorded, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

#: Rows read in one statement.
PAGE = 500

_QUEUES = "SELECT queue_name FROM pgmq.meta ORDER BY 1"
_HELD = """
    SELECT msg_id, read_ct, last_read_at,
        extract(epoch FROM vt - clock_timestamp())::float8,
        message -> 'headers' ->> 'id', message -> 'headers' ->> 'task',
        {returned}
    FROM {source} t WHERE vt > clock_timestamp() AND read_ct > 0 AND last_read_at IS NOT NULL
        AND msg_id > %s AND (%s::text IS NULL OR message -> 'headers' ->> 'id' = %s)
    ORDER BY msg_id LIMIT %s"""
_LOSSES = """
    SELECT headers -> {losses} FROM {source} WHERE msg_id = %s AND headers ? {losses}"""
_WAITING = """
    SELECT (SELECT count(*) FROM {source} o WHERE o.vt <= clock_timestamp()
            AND o.msg_id < t.msg_id),
        message -> 'headers' ->> 'task', read_ct, coalesce((headers ->> {returns})::int, 0)
    FROM {source} t WHERE vt <= clock_timestamp() AND message -> 'headers' ->> 'id' = %s
    ORDER BY msg_id LIMIT 1"""


class PgmqRecords:
    """The records of one database; implements :class:`~.core.records.Records`."""

    def __init__(self, run: Callable[..., list[Any]], names: Callable[[str], str]) -> None:
        """*run* runs a statement with its values; *names* converts kombu's names to pgmq's."""
        self._run = run
        self._names = names

    def leases(self, task_id: str | None = None) -> Iterator[Recorded]:
        for (queue,) in self._run(sql.SQL(_QUEUES)):
            with suppress(psycopg.errors.UndefinedTable):  # dropped a moment ago
                yield from self._held(queue, task_id)

    def losses(self, tag: str) -> Sequence[Mapping[str, Any]]:
        delivery = Delivery.parse(tag)
        statement = _format(_LOSSES, delivery.queue)
        with suppress(psycopg.errors.UndefinedTable):
            for (past,) in self._run(statement, delivery.msg_id):
                return tuple(past)
        return ()

    def waiting(self, task_id: str, queues: Sequence[str]) -> Waiting | None:
        for queue in queues:
            statement = _format(_WAITING, self._names(queue))
            rows: list[Any] = []
            with suppress(psycopg.errors.UndefinedTable):
                rows = self._run(statement, task_id)
            for ahead, task, read_ct, returns in rows:
                return Waiting(
                    queue=queue,
                    ahead=ahead,
                    tag="",
                    task=task or "",
                    deliveries=read_ct,
                    losses=max(0, read_ct - returns),
                )
        return None

    def _held(self, queue: str, task_id: str | None) -> Iterator[Recorded]:
        statement, last = _format(_HELD, queue), 0
        while page := self._run(statement, last, task_id, task_id, PAGE):
            for msg_id, read_ct, read_at, remaining, id_, task, returns in page:
                delivery = Delivery(queue, msg_id, read_ct, read_at)
                yield Recorded(
                    tag=delivery.tag,
                    task_id=id_ or "",
                    task=task or "",
                    queue=queue,
                    worker="",
                    token=delivery.token,
                    deliveries=read_ct,
                    losses=max(0, read_ct - 1 - returns),
                    since=read_at.timestamp(),
                    remaining=remaining,
                )
            last = page[-1][0]


def _format(text: str, queue: str) -> sql.Composed:
    return sql.SQL(text).format(source=table(queue), **headers())
