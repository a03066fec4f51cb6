"""Dead letters: rows of a queue of their own, which say beside the message what became of it.

Moving a row is one statement, so a message is in one queue or in the other. The dead-letter queue
is one of pgmq's as any other, made when it is first needed; a comment on its table tells it from
those. In it a message starts afresh: whatever moves it to a queue has it run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from celery_lease.brokers.payloads import body_of
from celery_lease.brokers.pgmq.statements import RETURNS, table
from celery_lease.core.dead import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Key in a row's ``headers`` that says since when it is dead, where it came from, and its losses.
DEAD = "celery_lease_dead"
#: Comment on the tables of dead-letter queues.
COMMENT = "dead letters of celery-lease"
#: Letters read in one call.
PAGE = 100

_NAMES = {
    "returns": sql.Literal(RETURNS),
    "dead": sql.Literal(DEAD),
    "comment": sql.Literal(COMMENT),
}

_MAKE = """
    DO $$ BEGIN
        IF to_regclass({regclass}) IS NULL THEN
            PERFORM pgmq.create({name});
            COMMENT ON TABLE {target} IS {comment};
        END IF;
    END $$"""
#: Takes what :func:`burial` says; tells whether it is there now, maybe by a call that
#: was not answered, and whether it was where it came from.
_BURY = """
    WITH free AS (
        SELECT msg_id FROM {source} WHERE msg_id = %s AND read_ct = %s AND last_read_at = %s
        AND vt > 'epoch' FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM {source} t USING free WHERE t.msg_id = free.msg_id
        RETURNING t.msg_id, t.read_ct, t.message, t.headers
    ), put AS (
        INSERT INTO {target} (vt, message, headers)
        SELECT clock_timestamp(), message,
            CASE jsonb_typeof(headers) WHEN 'object' THEN headers - {returns} ELSE '{{}}' END
            || jsonb_build_object({dead}, jsonb_build_object(
                'tag', %s::text, 'queue', %s::text, 'deliveries', read_ct,
                'losses', read_ct - 1 - coalesce((headers ->> {returns})::int, 0),
                'at', extract(epoch FROM clock_timestamp())))
        FROM gone RETURNING msg_id
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
    """Return the statement that makes a dead-letter *queue*, named as in pgmq, if need be."""
    target = table(queue)
    return sql.SQL(_MAKE).format(
        regclass=sql.Literal(target.as_string(None)),
        name=sql.Literal(queue),
        target=target,
        **_NAMES,
    )


def burial(queue: str, dead: str) -> sql.Composed:
    """Return the statement that moves a delivery from a *queue* to another.

    It takes id, count and time read, tag, the queue's name, and again tag, id, count and time read.
    """
    return _format(_BURY, source=table(queue), target=table(dead))


class PgmqDeadLetters:
    """The dead-letter queues of one database; implements :class:`~.core.dead.DeadLetters`."""

    def __init__(self, run: Callable[..., list[Any]], names: Callable[[str], str]) -> None:
        """*run* runs a statement with its values; *names* turns kombu's names into pgmq's."""
        self._run = run
        self._names = names

    def queues(self, likely: Sequence[str] = ()) -> list[str]:
        """Return the names, as in pgmq, of the queues that hold something."""
        del likely
        names = [name for (name,) in self._run(_format(_QUEUES))]
        return [name for name in names if next(self.letters(name), None)]

    def letters(self, queue: str) -> Iterator[DeadLetter]:
        """Yield what lies in a *queue*, the oldest first; what is no dead letter is passed over."""
        source, last = self._table(queue), 0
        while page := self._run(_format(_LETTERS, source=source), last, PAGE):
            for _, message, dead in page:
                yield _letter(queue, message, dead)
            last = page[-1][0]

    def retry(self, letter: DeadLetter) -> bool:
        """Send a letter back to the queue it came from; False: it is not there any more."""
        source, target = self._table(letter.queue), table(letter.key)
        purge = _format(_PURGE, source=source)
        return bool(self._run(_format(_RETRY, purge=purge, target=target), letter.text.decode()))

    def purge(self, letter: DeadLetter) -> bool:
        """Throw a letter away; False: it is not there any more."""
        source = self._table(letter.queue)
        return bool(self._run(_format(_PURGE, source=source), letter.text.decode()))

    def _table(self, queue: str) -> sql.Identifier:
        known = [name for (name,) in self._run(_format(_QUEUES))]
        return table(queue if queue in known else self._names(queue))


def _letter(queue: str, message: Any, dead: Any) -> DeadLetter:
    headers = message.get("headers") or {}
    tag: str = dead["tag"]
    return DeadLetter(
        task_id=str(headers.get("id") or ""),
        task=str(headers.get("task") or ""),
        queue=queue,
        origin=dead["queue"],
        key=tag.split("-", 3)[3],
        died_at=float(dead["at"]),
        losses=dead["losses"],
        headers=headers,
        body=body_of(message),
        text=tag.encode(),
    )


def _format(text: str, **names: sql.Composable) -> sql.Composed:
    return sql.SQL(text).format(**_NAMES, **names)
