"""The SQL of leases: one statement for deliveries of any number of queues.

Every statement takes deliveries, locks those of their rows that are free, changes them, and returns
which were changed, and which existed before. A row belongs to a delivery if it was neither read
again nor returned since; an expired one only if *late* is set.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_lease.brokers.pgmq.fence import Delivery

#: Key in a row's ``headers`` for the number of its orderly returns.
RETURNS = "celery_lease_returns"
#: Key in a row's ``headers`` for the facts of its losses, and how many are kept.
LOSSES, LOSSES_KEPT = "celery_lease_losses", 20
#: Key of the last delivery whose task has not begun: it counts as an orderly return until then.
WAITS = "celery_lease_waits"
#: Key of the delivery under a lease: its worker, token, and number, and since when it is held. A
#: delivery that ends in order takes it along; after one that expired, the next claim finds it.
HOLDER = "celery_lease_holder"
#: Statements cached, one for each set of queues; a worker has a few.
_KEPT = 64


class Act(Enum):
    """The change of the rows; ``d`` are the deliveries, locked."""

    EXTEND = """
        UPDATE {table} t SET vt = clock_timestamp() + make_interval(secs => d.seconds)
        FROM free{n} d WHERE t.msg_id = d.msg_id AND t.read_ct = d.read_ct"""
    CLAIM = """
        UPDATE {table} t SET vt = clock_timestamp() + make_interval(secs => d.seconds),
            headers = {headers} || {expired} || jsonb_build_object(
                {returns}, {returned} + 1, {waits}, t.read_ct, {holder}, jsonb_build_object(
                    'worker', %s::text, 'deliveries', t.read_ct, 'token', {token},
                    'since', extract(epoch FROM t.last_read_at)))
        FROM free{n} d WHERE t.msg_id = d.msg_id AND t.read_ct = d.read_ct"""
    BEGIN = """
        UPDATE {table} t SET
            headers = ({headers} - {waits}) || jsonb_build_object({returns}, {returned})
        FROM free{n} d WHERE t.msg_id = d.msg_id AND t.read_ct = d.read_ct"""
    COMPLETE = """
        DELETE FROM {table} t
        USING free{n} d WHERE t.msg_id = d.msg_id AND t.read_ct = d.read_ct"""
    RELEASE = """
        UPDATE {table} t SET vt = 'epoch',
            headers = ({headers} - {waits} - {holder}) || jsonb_build_object({returns}, {returned})
        FROM free{n} d WHERE t.msg_id = d.msg_id AND t.read_ct = d.read_ct"""
    HAND_BACK = """
        UPDATE {table} t SET vt = 'epoch',
            headers = ({headers} - {waits} - {holder})
                || jsonb_build_object({returns}, {returned} + 1)
        FROM free{n} d WHERE t.msg_id = d.msg_id AND t.read_ct = d.read_ct"""


#: The subselects hide the arrays' lengths from the planner, so that it looks up each row by its
#: key. For a thousand it would rather scan the whole table, however many messages wait in it.
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
_REPORT = """
    SELECT {n}, msg_id, read_ct, true FROM done{n}
    UNION ALL SELECT {n}, d.msg_id, d.read_ct, false FROM asked{n} d JOIN {table} t ON {theirs}"""
_THEIRS = """
    t.msg_id = d.msg_id AND t.read_ct = d.read_ct AND t.last_read_at = d.read_at
    AND t.vt > CASE WHEN d.late THEN 'epoch' ELSE clock_timestamp() END"""
_HEADERS = """
    CASE jsonb_typeof(t.headers) WHEN 'object' THEN t.headers ELSE '{{}}' END"""
_RETURNED = """
    (coalesce((t.headers ->> {returns})::int, 0)
        - CASE (t.headers ->> {waits})::int WHEN t.read_ct THEN 1 ELSE 0 END)"""
#: The facts of a former holder's loss, to be added to the headers, if its task had begun, and if it
#: has not noted them itself.
_EXPIRED = """
    CASE WHEN (t.headers -> {holder} ->> 'deliveries')::int < t.read_ct
        AND (t.headers ->> {waits})::int IS DISTINCT FROM
            (t.headers -> {holder} ->> 'deliveries')::int
        AND NOT {past} @> jsonb_build_array(
            jsonb_build_object('token', t.headers -> {holder} -> 'token'))
    THEN jsonb_build_object({losses},
        CASE WHEN jsonb_array_length({past}) < {kept} THEN {past} ELSE {past} - 0 END
        || jsonb_build_array((t.headers -> {holder}) || jsonb_build_object(
            'reason', 'expired', 'ended', extract(epoch FROM t.last_read_at))
            || jsonb_strip_nulls(jsonb_build_object(
                'cause', %s::jsonb -> (t.headers -> {holder} ->> 'worker')))))
    ELSE '{{}}' END"""
_PAST = """coalesce(t.headers -> {losses}, '[]')"""
_NUMBER = """(extract(epoch FROM t.last_read_at) * 1000000)::bigint"""


def headers() -> dict[str, sql.Composable]:
    """Return the parts of statements on a table ``t`` that concern its ``headers``.

    ``headers`` is always an object, ``returned`` the number of orderly returns before the last
    delivery, ``expired`` what a claim adds; ``returns``, ``waits``, ``holder`` and ``losses`` are
    keys.
    """
    names = {"returns": RETURNS, "waits": WAITS, "holder": HOLDER, "losses": LOSSES}
    keys: dict[str, sql.Composable] = {name: sql.Literal(key) for name, key in names.items()}
    keys |= {"kept": sql.Literal(LOSSES_KEPT), "past": sql.SQL(_PAST).format(**keys)}
    parts = {"headers": _HEADERS, "returned": _RETURNED, "expired": _EXPIRED, "token": _NUMBER}
    return {**keys, **{name: sql.SQL(text).format(**keys) for name, text in parts.items()}}


@lru_cache(_KEPT)
def statement(act: Act, queues: Sequence[str]) -> sql.Composed:
    """Return the statement that changes deliveries of *queues*, in this order.

    Each queue takes five arrays: ids, counts, times read, seconds, late; a claim, behind them, why
    former holders did not extend their leases, a JSON object by worker, and the name of the worker.
    A delivery returns a row
    with false if it existed, and one with true if it was changed: the number of its queue, id,
    count, and that.
    """
    parts = [(number, table(queue)) for number, queue in enumerate(queues)]
    steps = [_format(text, act, *part) for part in parts for text in (_ASKED, _FREE, _DONE)]
    reports = [_format(_REPORT, act, *part) for part in parts]
    return sql.SQL("WITH {} {}").format(
        sql.SQL(",").join(steps), sql.SQL(" UNION ALL ").join(reports)
    )


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
    names = {"n": sql.SQL(str(number)), "table": rows, **headers()}
    return sql.SQL(text).format(
        **names, theirs=sql.SQL(_THEIRS), act=sql.SQL(act.value).format(**names)
    )
