"""The lease calls of pgmq: fenced statements, and what their rows mean.

Nothing here decides. Errors of the client library stop in this module: whatever was not answered
clearly is :attr:`Answer.UNKNOWN`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from celery_lease.brokers.pgmq import dead
from celery_lease.brokers.pgmq.connections import Connections
from celery_lease.brokers.pgmq.dead import PgmqDeadLetters
from celery_lease.brokers.pgmq.fence import Delivery
from celery_lease.brokers.pgmq.statements import RETURNS, Act, parameters, statement
from celery_lease.core.clock import SystemClock
from celery_lease.core.delivery import Answer, Capabilities, Claim, Reaped, Renewal, Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from psycopg import sql

    from celery_lease.core.clock import Clock

logger = logging.getLogger(__name__)

#: Longest wait for an answer, in seconds, where no lease asks for a shorter one.
ANSWER_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A message as it was read, before it is claimed."""

    delivery: Delivery
    queue: str  #: kombu's name of its queue
    terms: Terms
    hidden_until: float  #: clock reading until which nobody else can read it
    headers: Mapping[str, Any] | None = None  #: the row's own

    @property
    def returns(self) -> int:
        """How many earlier deliveries ended in an orderly return."""
        return int((self.headers or {}).get(RETURNS) or 0)


@dataclass(frozen=True, slots=True)
class _Ask:
    """What is asked of one delivery."""

    delivery: Delivery
    seconds: float = 0.0
    late: bool = True


class PgmqDriver:
    """Leases in one database. Thread-safe; not for use across a fork."""

    capabilities = Capabilities(
        extends=True, fences=True, confirms=True, granularity=1e-6, buries=True
    )

    def __init__(
        self, connections: Connections, clock: Clock, names: Callable[[str], str] = str
    ) -> None:
        """*names* turns kombu's name of a queue into pgmq's."""
        self._connections = connections
        self._clock = clock
        self._names = names
        self._silent = False  # the last call was not answered

    def claim(self, arrivals: Sequence[Arrival]) -> list[Claim | None]:
        """Take messages under a lease, in one round trip; None for one that is somebody else's.

        Without an answer a lease is as long as the reading hides the message.
        """
        now = self._clock.now()
        asks = [_Ask(each.delivery, each.terms.seconds, late=False) for each in arrivals]
        answers = self._ask(Act.EXTEND, asks, ANSWER_TIMEOUT)
        return [
            _claim(arrival, answer, now) for arrival, answer in zip(arrivals, answers, strict=True)
        ]

    def extend(
        self, renewals: Sequence[Renewal], *, timeout: float = ANSWER_TIMEOUT
    ) -> list[Answer]:
        """Move expiries, all in one round trip."""
        asks = [_Ask(Delivery.parse(each.tag), each.seconds, each.late) for each in renewals]
        return self._ask(Act.EXTEND, asks, timeout)

    def complete(self, tags: Sequence[str]) -> list[Answer]:
        """Delete messages."""
        return self._ask(Act.COMPLETE, _asks(tags), ANSWER_TIMEOUT)

    def hand_back(
        self, tags: Sequence[str], *, orderly: bool = True, front: bool = True
    ) -> list[Answer]:
        """Make messages visible at once; they are read in the order in which they were sent."""
        del front
        return self._ask(Act.HAND_BACK if orderly else Act.RELEASE, _asks(tags), ANSWER_TIMEOUT)

    def return_unclaimed(self, attempts: Sequence[Any]) -> list[Answer]:
        """Do nothing: what was not claimed becomes visible by itself."""
        return [Answer.HELD] * len(attempts)

    def reap(self, *, limit: int) -> list[Reaped]:
        """Return nothing: expired messages are visible by themselves."""
        del limit
        return []

    def overdue(self, *, limit: int) -> list[Reaped]:
        """Return nothing, as :meth:`reap` does."""
        del limit
        return []

    def bury(self, tag: str, queue: str) -> Answer:
        """Move a message to a dead-letter queue, which is made if need be."""
        delivery, target = Delivery.parse(tag), self._names(queue)
        row = [delivery.msg_id, delivery.read_ct, delivery.read_at]
        try:
            self._run(dead.make(target))
            statement = dead.burial(delivery.queue, target)
            ((there, left),) = self._run(statement, *row, tag, delivery.queue, tag, *row)
        except (psycopg.Error, OSError) as exc:
            self._tell(exc)
            return Answer.UNKNOWN
        return _answer(there, left)

    def dead_letters(self) -> PgmqDeadLetters:
        """Return the dead-letter queues."""
        return PgmqDeadLetters(self._run, self._names)

    def _run(self, statement: sql.Composed, *values: object) -> list[tuple[Any, ...]]:
        return self._connections.run(statement, values, timeout=ANSWER_TIMEOUT)

    def close(self) -> None:
        """Close the driver's connections; a later call opens them again."""
        self._connections.close()

    def _ask(self, act: Act, asks: Sequence[_Ask], timeout: float) -> list[Answer]:
        """Ask for everything at once."""
        if not asks:
            return []
        queues: dict[str, list[_Ask]] = {}
        for each in asks:
            queues.setdefault(each.delivery.queue, []).append(each)
        answers = self._ask_queues(act, queues, timeout)
        return [answers.get(each.delivery, Answer.UNKNOWN) for each in asks]

    def _ask_queues(
        self, act: Act, queues: Mapping[str, list[_Ask]], timeout: float
    ) -> dict[Delivery, Answer]:
        lists = list(queues.values())
        try:
            rows = self._connections.run(
                statement(act, tuple(queues)),
                [each for asks in lists for each in _parameters(asks)],
                timeout=timeout,
            )
        except psycopg.errors.UndefinedTable:
            return self._ask_one_by_one(act, queues, timeout)
        except (psycopg.Error, OSError) as exc:
            self._tell(exc)
            return {}
        self._tell(None)
        there = {row[:3] for row in rows}
        done = {row[:3] for row in rows if row[3]}
        names = {
            each.delivery: (number, each.delivery.msg_id, each.delivery.read_ct)
            for number, asks in enumerate(lists)
            for each in asks
        }
        return {delivery: _answer(name in done, name in there) for delivery, name in names.items()}

    def _ask_one_by_one(
        self, act: Act, queues: Mapping[str, list[_Ask]], timeout: float
    ) -> dict[Delivery, Answer]:
        """Ask queue by queue: one of them was dropped, and its messages with it."""
        if len(queues) == 1:
            ((queue, asks),) = queues.items()
            logger.warning("queue %s does not exist: %d leases are lost", queue, len(asks))
            return {each.delivery: Answer.LOST for each in asks}
        answers: dict[Delivery, Answer] = {}
        ends = self._clock.now() + timeout
        for queue, asks in queues.items():
            answers |= self._ask_queues(act, {queue: asks}, ends - self._clock.now())
        return answers

    def _tell(self, error: Exception | None) -> None:
        """Log that the database does not answer, or does again; each time only once."""
        if error is None and self._silent:
            self._silent = False
            logger.info("PostgreSQL answers for leases again")
        elif error is not None and not self._silent:
            self._silent = True
            logger.warning("PostgreSQL does not answer for leases: %s", error)


def _asks(tags: Sequence[str]) -> list[_Ask]:
    return [_Ask(Delivery.parse(tag)) for tag in tags]


def _parameters(asks: Sequence[_Ask]) -> list[list[object]]:
    return parameters(
        [each.delivery for each in asks],
        [each.seconds for each in asks],
        [each.late for each in asks],
    )


def _answer(done: bool, there: bool) -> Answer:
    """Return what a row says; one that is there and was not touched is locked by somebody."""
    if done:
        return Answer.HELD
    return Answer.UNKNOWN if there else Answer.LOST


def _claim(arrival: Arrival, answer: Answer, asked_at: float) -> Claim | None:
    delivery, seconds = arrival.delivery, arrival.terms.seconds
    if answer is Answer.UNKNOWN:
        seconds = min(seconds, arrival.hidden_until - asked_at)
    if answer is Answer.LOST or seconds <= 0:
        return None
    return Claim(
        tag=delivery.tag,
        token=delivery.token,
        queue=arrival.queue,
        deliveries=delivery.read_ct,
        losses=max(0, delivery.read_ct - 1 - arrival.returns),
        asked_at=asked_at,
        seconds=seconds,
        provisional=answer is Answer.UNKNOWN,
    )


def connect(channel: Any, clock: Clock | None = None) -> PgmqDriver:
    """Make a driver for the database of a kombu *channel*; creating it does not connect."""
    clock = clock or SystemClock()
    prefix, entity_name = channel.queue_name_prefix, type(channel).entity_name

    def names(queue: str) -> str:
        # Not the channel's bound method: the driver outlives it.
        return str(entity_name(None, prefix + queue))

    return PgmqDriver(Connections(channel.pgmq.config.dsn, clock), clock, names)
