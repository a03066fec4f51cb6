"""Exclusive keys on pgmq: which messages of this worker need one, and what the database says.

The scripts, and what a key's state is, are in :mod:`.key_statements`. This process remembers which
of its leases need a key, for the question and for the wake that their end brings. If it is killed,
so are its leases, and the reaper of any worker wakes who waits.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from celery_lease.brokers.pgmq.key_statements import (
    CREATE,
    DECIDE,
    GRANT,
    INDEX,
    LOOK,
    MAKE,
    MAKE_INDEX,
    MESSAGES,
    ORDER,
    PIECE,
    PLACE,
    REPLACED,
    RIGHTS,
    TABLE,
    WAKE,
    asked,
)
from celery_lease.core.keys import Exclusive, KeyAnswer, Verdict
from celery_lease.core.words import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from celery_lease.brokers.pgmq.connections import Connections
    from celery_lease.brokers.pgmq.fence import ReceivedMessage
    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Claim

logger = logging.getLogger(__name__)

#: Longest wait for an answer, in seconds, unless a lease has less time.
ANSWER_TIMEOUT = 5.0
#: Pieces of one look after parked messages; the rest is left for the next.
PIECES = 40

_DUE = sql.SQL(f"""
    SELECT prefix, key, queue, array_agg(msg_id) FROM (
        SELECT * FROM {TABLE} WHERE place IS NOT NULL AND look_at <= now()
        ORDER BY look_at LIMIT {MESSAGES}) due
    GROUP BY prefix, key, queue LIMIT {PIECE}""")  # noqa: S608  (ours)
_EXISTS = sql.SQL(f"SELECT to_regclass('{TABLE}') IS NOT NULL")


class NoKeyTable(PermissionError):
    """The user may not create or use the table of keys; the text has the SQL to run."""

    def __init__(self, user: str) -> None:
        self.why = f"this user may not create or use {TABLE}, which exclusive keys need"
        self.remedy = f"Run as a user who may: {CREATE}; {GRANT} {user}"
        super().__init__(f"{self.why}. {self.remedy}")


@dataclass(frozen=True, slots=True)
class _Keyed:
    """A leased message whose task needs a key."""

    received: ReceivedMessage
    claim: Claim
    exclusive: Exclusive


class PgmqKeys:
    """The keys of one database, for the apps of one prefix. Thread-safe."""

    def __init__(
        self,
        connections: Connections,
        clock: Clock,
        log_silence: Callable[[Exception], None],
        *,
        prefix: str = "",
        hides: float = 1800.0,
    ) -> None:
        """*prefix* tells apps apart; *hides*: the seconds that a parked message is hidden for."""
        self._connections, self._clock = connections, clock
        self._log_silence = log_silence
        self.prefix, self._hides = prefix, hides
        self.fault: NoKeyTable | None = None  #: why this user has no keys
        self._ready = False  # the table is there, and may be used
        self._exists = False  # there is a table, perhaps of others
        self._keyed: dict[str, _Keyed] = {}  # by tag; its operations are atomic
        self._next_look = 0.0  # clock reading before which no table is looked for

    def make_ready(self) -> None:
        """Make sure that the table exists and may be used.

        Raises:
            NoKeyTable: The user lacks a right.
            psycopg.Error: There was no answer.
        """
        if self._ready:
            return
        ((is_ours, exists, user),) = self._run(RIGHTS)
        if not is_ours:
            self.fault = NoKeyTable(user)
            raise self.fault
        if exists:
            self._make_index()
        else:
            self._run(MAKE)
        self._ready = self._exists = True
        self.fault = None

    def _make_index(self) -> None:
        """Add the index that the table of an older version lacks; without it, looks are slow."""
        limit, make = MAKE_INDEX
        try:
            self._run(limit, then=make)
        except psycopg.Error as exc:
            logger.info("index %s not created: %s", INDEX, str(exc).partition("\n")[0])

    def deciding(
        self, received: Sequence[ReceivedMessage], claims: Sequence[Claim | None]
    ) -> sql.Composable | None:
        """Return what is to follow the statement that makes the *claims* of a read; None: nothing.

        It decides about their keys in the same round trip. Its last row is for :meth:`decide`.
        """
        asks = self._to_decide(_keyed(received, claims)) if self._ready else {}
        return sql.SQL("{}; {}").format(self._asked(asks, takes=False), DECIDE) if asks else None

    def decide(
        self,
        received: Sequence[ReceivedMessage],
        claims: Sequence[Claim | None],
        said: str | None = None,
    ) -> list[Claim | KeyAnswer | None]:
        """Return the *claims* of a read, with an answer instead of each that was parked.

        Never raises. *said* are the answers, if they came with the claims. Without them the tasks
        ask again when they are about to start; if the user has no keys, :attr:`fault` says so, and
        no task that needs one must run.
        """
        found: list[Claim | KeyAnswer | None] = list(claims)
        keyed = _keyed(received, claims)
        for number, each in list(keyed.items()):
            found[number] = each.claim
            if each.claim.turned_away is None:
                self._keyed[each.claim.tag] = each
            else:
                del keyed[number]
        try:
            answers = self._decide(keyed) if said is None and keyed else _answers(said or "[]")
        except NoKeyTable:
            return found
        except (psycopg.Error, OSError) as exc:
            self._log_silence(exc)
            return found
        for number in answers.keys() & keyed.keys():
            answer, claim = answers[number], keyed[number].claim
            if answer.verdict in (Verdict.PARKED, Verdict.LOST):
                self._keyed.pop(claim.tag, None)
                found[number] = answer if answer.verdict is Verdict.PARKED else None
            elif answer.verdict.revokes:
                found[number] = replace(claim, turned_away=answer)
        return found

    def _decide(self, keyed: dict[int, _Keyed]) -> dict[int, KeyAnswer]:
        self.make_ready()
        asks = self._to_decide(keyed)
        return self._ask(asks, takes=False) if asks else {}

    @staticmethod
    def _to_decide(keyed: dict[int, _Keyed]) -> dict[int, _Keyed]:
        """Return those about which the database has to decide."""
        return {
            number: each
            for number, each in keyed.items()
            if each.exclusive.decides
            and not each.claim.provisional
            and each.claim.turned_away is None
        }

    def take(self, tag: str) -> KeyAnswer:
        keyed = self._keyed.get(tag)
        if keyed is None:
            return KeyAnswer(Verdict.LOST)
        try:
            answer = self._ask({0: keyed}, takes=True)[0]
        except (psycopg.Error, OSError) as exc:
            self._log_silence(exc)
            return KeyAnswer(Verdict.UNKNOWN)
        if answer.verdict is Verdict.PARKED:
            self._keyed.pop(tag, None)
        return answer

    def waking(self, tags: Iterable[str]) -> sql.Composable | None:
        """Return what is to follow a statement that ends some leases; None: nothing is.

        It frees their keys, and wakes as many messages as leases have ended.
        """
        if not self._keyed:
            return None
        keys = Counter(self._keyed[tag].exclusive.key for tag in tags if tag in self._keyed)
        if not keys:
            return None
        ask = self._to_wake(
            {"prefix": self.prefix, "key": key, "wakes": most} for key, most in keys.items()
        )
        return sql.SQL("{}; {}").format(ask, WAKE)

    def forget(self, tags: Iterable[str]) -> None:
        for tag in tags:
            self._keyed.pop(tag, None)

    def exist(self) -> bool:
        """Whether there is a table of keys, or was none a minute ago at the most.

        Raises:
            psycopg.Error: There was no answer.
        """
        if not self._exists and self._clock.now() >= self._next_look:
            ((self._exists,),) = self._run(_EXISTS)
            self._next_look = self._clock.now() + LOOK
        return self._exists

    def look_after(self) -> None:
        """Wake parked messages whose keys are free or whose time is over; hide others for longer.

        Any number of workers may do that; each message is looked at about once a minute.

        Raises:
            psycopg.Error: There was no answer.
        """
        for _ in range(PIECES if self.exist() else 0):
            due = self._due()
            if not due:
                return
            names = ("prefix", "key", "queue", "ids")
            asks = ({**dict(zip(names, row, strict=True)), "wakes": PIECE} for row in due)
            self._run(self._to_wake(asks), then=WAKE)

    def _due(self) -> list[tuple[Any, ...]]:
        try:
            return self._run(_DUE)
        except psycopg.errors.UndefinedTable:  # somebody has dropped it
            self._exists = self._ready = False
            return []

    def _to_wake(self, keys: Iterable[dict[str, Any]]) -> sql.Composed:
        """Return what is to be said to the script of each key."""
        return asked(json.dumps([{**each, "hides": self._hides} for each in keys]))

    def _ask(self, asks: dict[int, _Keyed], *, takes: bool) -> dict[int, KeyAnswer]:
        ask = self._asked(asks, takes=takes)
        try:
            rows = self._run(ask, then=DECIDE)
        except psycopg.errors.UndefinedTable:  # somebody has dropped it
            self._ready = False
            self.make_ready()
            rows = self._run(ask, then=DECIDE)
        return _answers(rows[-1][0])

    def _asked(self, asks: dict[int, _Keyed], *, takes: bool) -> sql.Composed:
        return asked(
            json.dumps([self._facts(number, each, takes) for number, each in asks.items()])
        )

    def _facts(self, number: int, keyed: _Keyed, takes: bool) -> dict[str, Any]:
        received, claim, exclusive = keyed.received, keyed.claim, keyed.exclusive
        delivery, about = received.delivery, received.terms.about
        order = 0 if claim.deliveries > 1 or exclusive.retried else 1
        place = _place(received.headers or {})
        return {
            "number": number,
            "queue": delivery.queue,
            "msg_id": delivery.msg_id,
            "read_ct": delivery.read_ct,
            "read_at": delivery.read_at.isoformat(),
            "takes": takes,
            "prefix": self.prefix,
            "key": exclusive.key,
            "key_limit": exclusive.limit,
            "busy": str(exclusive.on_busy),
            "place": order * ORDER + claim.token if place is None else place,
            "expires": exclusive.expires,
            "hides": self._hides,
            "name": received.queue,
            "task": storable(str(about.get("task") or "")),
            "id": storable(str(about.get("id") or "")),
            "worker": storable(str(about.get("worker") or "")),
            "deliveries": claim.deliveries - 1,  # before this one
            "losses": claim.losses,
        }

    def _run(
        self, statement: sql.SQL | sql.Composed, then: sql.Composable | None = None
    ) -> list[tuple[Any, ...]]:
        return self._connections.run(statement, (), timeout=ANSWER_TIMEOUT, then=then)


def _keyed(
    received: Sequence[ReceivedMessage], claims: Sequence[Claim | None]
) -> dict[int, _Keyed]:
    """Return the messages of a read, by number, that were claimed and need a key."""
    return {
        number: _Keyed(each, _with_line(claim, each.headers or {}), each.terms.exclusive)
        for number, (each, claim) in enumerate(zip(received, claims, strict=True))
        if claim is not None and each.terms.exclusive is not None
    }


def _answers(said: str) -> dict[int, KeyAnswer]:
    """Return the script's answers, by number."""
    return {
        number: KeyAnswer(Verdict(verdict or "held"), by)
        for number, verdict, by in json.loads(said)
    }


def _with_line(claim: Claim, headers: Any) -> Claim:
    """Return a claim with what its message's row says: since when it waits, and who replaced it."""
    if isinstance(by := headers.get(REPLACED), str):
        return replace(claim, turned_away=KeyAnswer(Verdict.REPLACED, by))
    place = _place(headers)
    return claim if place is None else replace(claim, parked_at=place % ORDER / 1e6)


def _place(headers: Any) -> int | None:
    """Return a message's place in a line, if it was parked before."""
    place = headers.get(PLACE)
    return place if isinstance(place, int) and 0 <= place < 2 * ORDER else None
