"""Dead letters on pgmq: rows of a queue of their own, with their history beside the message.

Moving a row is one statement, so a message is in exactly one queue. A dead-letter queue is an
ordinary one of pgmq, created when it is first needed; a comment on its table marks it. Its messages
have fresh counters: a message that any tool moves back to a queue runs again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from celery_lease.brokers.payloads import body_of
from celery_lease.brokers.pgmq.key_statements import PLACE
from celery_lease.brokers.pgmq.statements import headers, table
from celery_lease.core.dead import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Key in a row's ``headers``: the time of its move, its origin, and its losses.
DEAD = "celery_lease_dead"
#: Comment on the tables of dead-letter queues.
COMMENT = "dead letters of celery-lease"
#: Letters read in one statement.
PAGE = 100

_NAMES = {
    **headers(),
    "dead": sql.Literal(DEAD),
    "place": sql.Literal(PLACE),
    "comment": sql.Literal(COMMENT),
}

#: Adds the facts of a delivery's loss to its row; once, by the delivery's token.
_NOTE = """
    WITH free AS (
        SELECT msg_id, coalesce(headers -> {losses}, '[]') AS past FROM {source}
        WHERE msg_id = %s AND read_ct = %s AND last_read_at = %s AND vt > 'epoch'
        FOR UPDATE SKIP LOCKED
    )
    UPDATE {source} t SET headers =
        CASE jsonb_typeof(headers) WHEN 'object' THEN headers ELSE '{{}}' END
        || jsonb_build_object({losses}, CASE WHEN jsonb_array_length(past) < {kept}
            THEN past ELSE past - 0 END || jsonb_build_array(%s::jsonb || jsonb_build_object(
            'ended', extract(epoch FROM clock_timestamp()),
            'since', extract(epoch FROM last_read_at), 'deliveries', read_ct)))
    FROM free WHERE t.msg_id = free.msg_id
        AND NOT past @> jsonb_build_array(jsonb_build_object('token', %s::bigint))
    RETURNING t.msg_id"""
_MAKE = """
    DO $$ BEGIN
        IF to_regclass({regclass}) IS NULL THEN
            PERFORM pgmq.create({name});
            COMMENT ON TABLE {target} IS {comment};
        END IF;
    END $$"""
#: Takes the values of :func:`move`; returns whether the letter is in the dead-letter queue now,
#: perhaps by a call that was not answered, and whether the row is in its own queue.
_MOVE = """
    WITH free AS (
        SELECT msg_id FROM {source} WHERE msg_id = %s AND read_ct = %s AND last_read_at = %s
        AND vt > 'epoch' FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM {source} t USING free WHERE t.msg_id = free.msg_id
        RETURNING t.msg_id, t.read_ct, t.message, t.headers
    ), put AS (
        INSERT INTO {target} (vt, message, headers)
        SELECT clock_timestamp(), message,
            ({headers} - {returns} - {waits} - {losses} - {place} - {holder})
            || jsonb_build_object({dead}, jsonb_build_object(
                'tag', %s::text, 'queue', %s::text, 'about', %s::jsonb, 'deliveries', read_ct,
                'history', coalesce(headers -> {losses}, '[]'),
                'losses', read_ct - 1 - {returned},
                'at', extract(epoch FROM clock_timestamp())))
        FROM gone t RETURNING msg_id
    )
    SELECT EXISTS (SELECT FROM put)
        OR EXISTS (SELECT FROM {target} WHERE headers -> {dead} ->> 'tag' = %s),
        EXISTS (SELECT FROM {source} WHERE msg_id = %s AND read_ct = %s AND last_read_at = %s)"""
_QUEUES = """
    SELECT queue_name FROM pgmq.meta
    WHERE {comment} =
        obj_description(to_regclass('pgmq.' || quote_ident(lower('q_' || queue_name))), 'pg_class')
    ORDER BY 1"""
_LETTERS = """
    SELECT msg_id, message, headers -> {dead} FROM {source}
    WHERE headers ? {dead} AND msg_id > %s ORDER BY msg_id LIMIT %s"""
_PURGE = """
    DELETE FROM {source} WHERE headers -> {dead} ->> 'tag' = %s AND vt <= clock_timestamp()
    RETURNING message, headers"""
_RETRY = """
    WITH gone AS ({purge}) INSERT INTO {target} (vt, message, headers)
    SELECT clock_timestamp(), message, headers - {dead} FROM gone RETURNING msg_id"""


def make(queue: str) -> sql.Composed:
    """Return the statement that creates a dead-letter *queue*, named as in pgmq, if needed."""
    target = table(queue)
    return sql.SQL(_MAKE).format(
        regclass=sql.Literal(target.as_string(None)),
        name=sql.Literal(queue),
        target=target,
        **_NAMES,
    )


def note(queue: str) -> sql.Composed:
    """Return the statement that adds the facts of a loss to a message of a *queue*.

    It takes id, count and time read, the facts as JSON, and the delivery's token.
    """
    return _format(_NOTE, source=table(queue))


def move(queue: str, dead: str) -> sql.Composed:
    """Return the statement that moves a delivery from a *queue* to another.

    It takes id, count and time read, tag, the queue's name, the letter's ``about`` as JSON, and
    again tag, id, count and time read.
    """
    return _format(_MOVE, source=table(queue), target=table(dead))


class PgmqDeadLetters:
    """The dead-letter queues of one database; implements :class:`~.core.dead.DeadLetters`."""

    def __init__(self, run: Callable[..., list[Any]], names: Callable[[str], str]) -> None:
        """*run* runs a statement with its values; *names* converts kombu's names to pgmq's."""
        self._run = run
        self._names = names

    def queues(self, likely: Sequence[str] = ()) -> list[str]:
        """Return the names, as in pgmq, of the dead-letter queues that are not empty."""
        del likely
        names = [name for (name,) in self._run(_format(_QUEUES))]
        return [name for name in names if next(self.letters(name), None)]

    def letters(self, queue: str) -> Iterator[DeadLetter]:
        source, last = self._table(queue), 0
        while page := self._run(_format(_LETTERS, source=source), last, PAGE):
            for _, message, dead in page:
                yield _letter(queue, message, dead)
            last = page[-1][0]

    def retry(self, letter: DeadLetter) -> bool:
        source, target = self._table(letter.queue), table(letter.key)
        purge = _format(_PURGE, source=source)
        return bool(self._run(_format(_RETRY, purge=purge, target=target), letter.text.decode()))

    def purge(self, letter: DeadLetter) -> bool:
        source = self._table(letter.queue)
        return bool(self._run(_format(_PURGE, source=source), letter.text.decode()))

    def _table(self, queue: str) -> sql.Identifier:
        known = [name for (name,) in self._run(_format(_QUEUES))]
        return table(queue if queue in known else self._names(queue))


def _letter(queue: str, message: Any, dead: Any) -> DeadLetter:
    tag: str = dead["tag"]
    return DeadLetter.of(
        queue,
        dead,
        message.get("headers") or {},
        key=tag.split("-", 3)[3],
        body=body_of(message),
        text=tag.encode(),
    )


def _format(text: str, **names: sql.Composable) -> sql.Composed:
    return sql.SQL(text).format(**_NAMES, **names)
