"""Looks at exclusive keys for people: who holds one, who waits for it. Changes nothing but a purge.

A row of the table of keys counts only if the row of its queue agrees: see :mod:`.key_statements`.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import errors, sql

from celery_lease.brokers.pgmq.fence import Delivery
from celery_lease.brokers.pgmq.key_statements import ORDER, TABLE
from celery_lease.brokers.pgmq.statements import table
from celery_lease.core.delivery import Answer
from celery_lease.core.keys import KeyUse, KeyUser
from celery_lease.core.records import Recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

#: How the tag of a parked message begins, which is nobody's delivery.
PARKED = "parked-"

_NAMES = {"table": sql.Identifier(*TABLE.split("."))}
_COLUMNS = (
    "queue, msg_id, key, key_limit, place, since, read_ct, read_at, name, task, id, worker, "
    "deliveries, losses"
)
_ROWS = sql.SQL(f"""
    SELECT {_COLUMNS} FROM {{table}} WHERE prefix = %s AND (%s::text IS NULL OR key = %s)
    ORDER BY key, place NULLS FIRST, since""").format(**_NAMES)  # noqa: S608  (ours)
_FIRST = sql.SQL(f"""
    SELECT {_COLUMNS} FROM (
        SELECT *, row_number() OVER (PARTITION BY key ORDER BY place) AS position
        FROM {{table}} WHERE prefix = %s AND place IS NOT NULL) AS each
    ORDER BY position, key LIMIT %s""").format(**_NAMES)  # noqa: S608  (ours)
_AWAITED = sql.SQL(f"""
    SELECT {_COLUMNS} FROM {{table}} WHERE prefix = %s AND place IS NOT NULL AND id = %s
    """).format(**_NAMES)  # noqa: S608  (ours)
_COUNTS = sql.SQL("""
    SELECT name, count(*) FROM {table} WHERE prefix = %s AND place IS NOT NULL GROUP BY name
    """).format(**_NAMES)
_STATES = """
    SELECT msg_id, read_ct, last_read_at FROM {source}
    WHERE msg_id = ANY (%s) AND vt > clock_timestamp()"""
_PURGE = """
    WITH gone AS (
        DELETE FROM {source} t USING {table} k
        WHERE k.queue = %s AND k.msg_id = ANY (%s) AND k.place IS NOT NULL
            AND t.msg_id = k.msg_id AND t.last_read_at IS NULL AND t.vt > clock_timestamp()
        RETURNING t.msg_id
    ), done AS (
        DELETE FROM {table} k USING gone WHERE k.queue = %s AND k.msg_id = gone.msg_id
    )
    SELECT msg_id FROM gone"""


class _Row(NamedTuple):
    """A message that holds a key, or waits for it."""

    queue: str
    msg_id: int
    key: str
    limit: int
    place: int | None
    since: datetime
    read_ct: int
    read_at: datetime
    name: str
    task: str
    id: str
    worker: str
    deliveries: int
    losses: int

    @property
    def tag(self) -> str:
        if self.place is not None:
            return f"{PARKED}{self.msg_id}-{self.queue}"
        return Delivery(self.queue, self.msg_id, self.read_ct, self.read_at).tag

    @property
    def user(self) -> KeyUser:
        return KeyUser(
            tag=self.tag,
            task=self.task,
            task_id=self.id,
            queue=self.name,
            worker=self.worker,
            since=self.since.timestamp() if self.place is None else self.place % ORDER / 1e6,
            limit=self.limit,
        )


class PgmqLines:
    """The keys of one database, for the apps of one prefix."""

    def __init__(self, run: Callable[..., list[Any]], prefix: str) -> None:
        """*run* runs a statement with its values."""
        self._run = run
        self._prefix = prefix

    def in_use(self, key: str | None = None) -> list[KeyUse]:
        """Return the keys that are held or waited for, all or one, by their names."""
        found = []
        for name, group in groupby(self._rows(_ROWS, key, key), key=lambda row: row.key):
            rows = list(group)
            holders = [row.user for row in rows if row.place is None]
            parked = [row.user for row in rows if row.place is not None]
            limit = (parked or holders)[-1].limit
            found.append(KeyUse(key=name, limit=limit, holders=holders, parked=parked))
        return found

    def awaited_by(self, task_id: str) -> str:
        return next((row.key for row in self._rows(_AWAITED, task_id)), "")

    def first_parked(self, most: int) -> list[Recorded]:
        found: list[Recorded] = []
        lengths: dict[str, int] = {}
        for row in self._rows(_FIRST, most):
            lengths[row.key] = lengths.get(row.key, 0) + 1
            found.append(
                Recorded(
                    tag=row.tag,
                    task_id=row.id,
                    task=row.task,
                    queue=row.name,
                    worker="",
                    token=0,
                    deliveries=row.deliveries,
                    losses=row.losses,
                    since=row.user.since,
                    remaining=0.0,
                    key=row.key,
                    position=lengths[row.key],
                )
            )
        return found

    def parked(self) -> dict[str, int]:
        with suppress(errors.UndefinedTable):
            return dict(self._run(_COUNTS, self._prefix))
        return {}

    def purge(self, tags: Sequence[str]) -> list[Answer]:
        """Delete parked messages for good."""
        gone: set[str] = set()
        names = [tag.removeprefix(PARKED).split("-", 1) for tag in tags]
        for queue in {queue for _, queue in names}:
            ids = [int(msg_id) for msg_id, name in names if name == queue]
            statement = sql.SQL(_PURGE).format(source=table(queue), **_NAMES)
            with suppress(errors.UndefinedTable):
                rows = self._run(statement, queue, ids, queue)
                gone |= {f"{PARKED}{msg_id}-{queue}" for (msg_id,) in rows}
        return [Answer.HELD if tag in gone else Answer.LOST for tag in tags]

    def _rows(self, statement: sql.Composed, *values: object) -> Iterable[_Row]:
        """Return the rows that the rows of their queues agree with."""
        rows: list[_Row] = []
        with suppress(errors.UndefinedTable):  # nobody has needed a key yet
            rows = [_Row(*each) for each in self._run(statement, self._prefix, *values)]
        states = {}
        for queue in {row.queue for row in rows}:
            ids = [row.msg_id for row in rows if row.queue == queue]
            hidden = sql.SQL(_STATES).format(source=table(queue))
            with suppress(errors.UndefinedTable):  # dropped
                for msg_id, *state in self._run(hidden, ids):
                    states[queue, msg_id] = state
        for row in rows:
            state = states.get((row.queue, row.msg_id))
            parked = row.place is not None
            if state and (state[1] is None if parked else state == [row.read_ct, row.read_at]):
                yield row
