"""The SQL of leases: one statement for deliveries of any number of queues.

Every statement asks for deliveries, locks the rows that are theirs and free, acts on those, and
tells for which that was done, and which were there before. A row is a delivery's if it was neither
read again nor returned since; of an expired one, only if asked late.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_lease.brokers.pgmq.fence import Delivery

#: Key in a row's ``headers`` under which its orderly returns are counted.
RETURNS = "celery_lease_returns"
#: Statements kept, one for each set of queues; a worker has a few.
_KEPT = 64


class Act(Enum):
    """What is done to the rows; ``d`` are the deliveries, locked."""

    EXTEND = """
        UPDATE {table} t SET vt = clock_timestamp() + make_interval(secs => d.seconds)
        FROM free{n} d WHERE t.msg_id = d.msg_id AND t.read_ct = d.read_ct"""
    COMPLETE = """
        DELETE FROM {table} t
        USING free{n} d WHERE t.msg_id = d.msg_id AND t.read_ct = d.read_ct"""
    RELEASE = """
        UPDATE {table} t SET vt = 'epoch'
        FROM free{n} d WHERE t.msg_id = d.msg_id AND t.read_ct = d.read_ct"""
    HAND_BACK = """
        UPDATE {table} t SET vt = 'epoch', headers =
            CASE jsonb_typeof(t.headers) WHEN 'object' THEN t.headers ELSE '{{}}' END
            || jsonb_build_object({returns}, coalesce((t.headers ->> {returns})::int, 0) + 1)
        FROM free{n} d WHERE t.msg_id = d.msg_id AND t.read_ct = d.read_ct"""


#: An array that the planner cannot see it takes for short, so that it looks each row up by its key.
#: Of a thousand it would rather read the whole table, however many messages wait in it.
_ASKED = """
    asked{n} AS (
        SELECT * FROM unnest(
            (SELECT %s::bigint[]), (SELECT %s::int[]), (SELECT %s::timestamptz[]),
            (SELECT %s::float8[]), (SELECT %s::bool[])
        ) AS asked(msg_id, read_ct, read_at, seconds, late)
    )"""
_FREE = """
    free{n} AS (
        SELECT t.msg_id, t.read_ct, d.seconds
        FROM {table} t JOIN asked{n} d ON {theirs}
        FOR UPDATE OF t SKIP LOCKED
    )"""
_DONE = """
    done{n} AS ({act} RETURNING t.msg_id, t.read_ct)"""
_TOLD = """
    SELECT {n}, msg_id, read_ct, true FROM done{n}
    UNION ALL SELECT {n}, d.msg_id, d.read_ct, false FROM asked{n} d JOIN {table} t ON {theirs}"""
_THEIRS = """
    t.msg_id = d.msg_id AND t.read_ct = d.read_ct AND t.last_read_at = d.read_at
    AND t.vt > CASE WHEN d.late THEN 'epoch' ELSE clock_timestamp() END"""


@lru_cache(_KEPT)
def statement(act: Act, queues: Sequence[str]) -> sql.Composed:
    """Return the statement that acts on deliveries of some *queues*, in this order.

    Each queue takes five arrays: ids, counts, times read, seconds, whether late. A delivery gives a
    row with false if it was there, and one with true if it was done: number of its queue, id,
    count, and that.
    """
    parts = [(number, table(queue)) for number, queue in enumerate(queues)]
    steps = [_format(text, act, *part) for part in parts for text in (_ASKED, _FREE, _DONE)]
    told = [_format(_TOLD, act, *part) for part in parts]
    return sql.SQL("WITH {} {}").format(sql.SQL(",").join(steps), sql.SQL(" UNION ALL ").join(told))


def parameters(
    deliveries: Sequence[Delivery], seconds: Sequence[float], late: Sequence[bool]
) -> list[list[object]]:
    """Return one queue's parameters of a :func:`statement`."""
    return [
        [each.msg_id for each in deliveries],
        [each.read_ct for each in deliveries],
        [each.read_at for each in deliveries],
        list(seconds),
        list(late),
    ]


def table(queue: str) -> sql.Identifier:
    """Return the table of a queue, named as in pgmq."""
    return sql.Identifier("pgmq", f"q_{queue}".lower())  # as pgmq.format_table_name makes it


def _format(text: str, act: Act, number: int, rows: sql.Identifier) -> sql.Composed:
    names = {"n": sql.SQL(str(number)), "table": rows, "returns": sql.Literal(RETURNS)}
    return sql.SQL(text).format(
        **names, theirs=sql.SQL(_THEIRS), act=sql.SQL(act.value).format(**names)
    )
