"""pgmq's driver: fenced statements, and the meaning of their rows.

It decides nothing. Errors of the client library stop in this module: without a clear answer the
result is :attr:`Answer.UNKNOWN`.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from celery_lease.brokers.identity import cause_of_expiry
from celery_lease.brokers.pgmq import dead, names as pgmq_names
from celery_lease.brokers.pgmq.channel import Leasing
from celery_lease.brokers.pgmq.connections import Connections, yield_to_greenlets
from celery_lease.brokers.pgmq.dead import PgmqDeadLetters
from celery_lease.brokers.pgmq.exclusive import ANSWER_TIMEOUT, PgmqKeys
from celery_lease.brokers.pgmq.fence import Delivery, ReceivedMessage
from celery_lease.brokers.pgmq.keyed import Keyed
from celery_lease.brokers.pgmq.records import PgmqRecords
from celery_lease.brokers.pgmq.statements import HOLDER, Act, parameters, statement
from celery_lease.celery_patches.open_pools import closing
from celery_lease.core.clock import Clock, SystemClock
from celery_lease.core.dead import LOST
from celery_lease.core.delivery import Answer, Capabilities, Claim, Renewal, ask_in_batches
from celery_lease.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_lease.brokers.pgmq.checkpoint import PgmqCheckpoints
    from celery_lease.core.findings import Doctor
    from celery_lease.core.keys import KeyAnswer

logger = logging.getLogger(__name__)

_STATEMENT_TIMEOUT = sql.SQL(
    "SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout'"
)
#: The most leases that a statement extends: all of them are unknown if it takes too long.
BATCH = 1000
#: What ends leases.
_ENDINGS = frozenset({Act.COMPLETE, Act.RELEASE, Act.HAND_BACK})


@dataclass(frozen=True, slots=True)
class _Ask:
    """A change of one delivery."""

    delivery: Delivery
    seconds: float = 0.0
    late: bool = True


class PgmqDriver(Keyed):
    """Leases in one database. Thread-safe; not for use across a fork."""

    capabilities = Capabilities(
        extends=True,
        fences=True,
        confirms=True,
        granularity=1e-6,
        dead_letters=True,
        records=True,
        checkpoints=True,
        keys=True,
    )
    channel_class = Leasing
    visibility_timeout = 1800.0
    # Kombu 5.7.0 names its reply queue longer than pgmq 1.13 allows, calls a send_topic that pgmq
    # does not have, and binds reply queues only within a process.
    unaskable = "the names and calls of Celery's remote control are none that pgmq takes"
    unrecorded = (
        "workers on pgmq cannot be asked: this is the database's own record, which knows neither "
        "who holds a message nor its beats and progress"
    )
    lookup = (
        "How often it was delivered, and until when it is hidden, for each queue: SELECT read_ct, "
        "vt FROM pgmq.q_QUEUE WHERE message->'headers'->>'id' = '{id}'"
    )

    def __init__(
        self,
        connections: Connections,
        clock: Clock,
        names: Callable[[str], str] = str,
        **keys: Any,
    ) -> None:
        """*names* converts kombu's name of a queue to pgmq's; *keys* are options of the keys."""
        self.keys = PgmqKeys(connections, clock, self._log_silence, **keys)
        self._connections = connections
        self._clock = clock
        self._names = names
        self._worker = ""  # the holder of the claims, for the dead letter
        self._causes = "{}"  # of the expiries that the claims find, by former holder

    @classmethod
    def connect(cls, channel: Any, clock: Clock | None = None) -> PgmqDriver:
        """Return a driver for the database of a kombu *channel*; it does not connect yet."""
        yield_to_greenlets()
        clock = clock or SystemClock()
        prefix, entity_name = channel.queue_name_prefix, type(channel).entity_name

        def names(queue: str) -> str:
            # Not the channel's bound method: the driver outlives it.
            return str(entity_name(None, prefix + queue))

        connections = Connections(channel.pgmq.config.dsn, clock)
        return cls(connections, clock, names, prefix=prefix, hides=channel.visibility_timeout)

    @classmethod
    def transport_class(cls, kombus: Any) -> Any:
        return closing(super().transport_class(kombus))

    unfit = staticmethod(pgmq_names.unfit)
    unfit_name = staticmethod(pgmq_names.unfit_name)

    @classmethod
    def will_pass(cls, exc: BaseException) -> bool:
        """Whether the server only reads for now, or ended a transaction of a stopped process.

        These errors are of the class 25, which kombu does not take for lost connections.
        """
        return isinstance(exc, psycopg.Error) and (exc.sqlstate or "").startswith("25")

    @classmethod
    def bound(cls, connection: Any, seconds: float) -> None:
        """Set the longest wait of kombu's pool to *seconds*, and close it if it cannot connect.

        By default it waits for 30 s, and stays open.
        """
        transport = connection.transport
        transport.__class__ = closing(transport.__class__)
        bounds = {"pool_timeout": seconds}
        connection.transport_options = {**bounds, **(connection.transport_options or {})}

    @classmethod
    def checkpoints(cls, channel: Any, expires: int) -> PgmqCheckpoints:
        from celery_lease.brokers.pgmq import checkpoint  # noqa: PLC0415  (few workers need it)

        return checkpoint.connect(channel, expires)

    @classmethod
    def doctor(cls) -> Doctor:
        from celery_lease.brokers.pgmq import doctor  # noqa: PLC0415  (no worker needs it)

        return doctor

    def claim(self, received: Sequence[ReceivedMessage]) -> list[Claim | KeyAnswer | None]:
        """Put messages under a lease, in one round trip; None for a message with another holder.

        Without an answer a lease is as long as the read hides the message. Messages whose tasks
        need exclusive keys that are busy are parked in the same round trip.
        """
        now = self._clock.now()
        for each in received[-1:]:
            self._worker = str(each.terms.about.get("worker", ""))
            self._causes = json.dumps(_causes(received, self._worker))
        asks = [_Ask(each.delivery, each.terms.seconds, late=False) for each in received]
        act = Act.CLAIM if all(each.terms.waits for each in received) else Act.EXTEND
        then = self.keys.deciding(received, [_claim(each, Answer.HELD, now) for each in received])
        answers, said = self._claim_and_decide(act, asks, then) if then else (None, None)
        if answers is None:
            answers = self._ask(act, asks, ANSWER_TIMEOUT)
        claims = [_claim(each, answer, now) for each, answer in zip(received, answers, strict=True)]
        return self.keys.decide(received, claims, said)

    def _claim_and_decide(
        self, act: Act, asks: list[_Ask], then: sql.Composable
    ) -> tuple[list[Answer] | None, str | None]:
        """Claim messages of a read, and decide about their keys; None: not at once."""
        try:
            *rows, (said,) = self._connections.run(
                statement(act, (asks[0].delivery.queue,)),
                [*_parameters(asks), *self._claiming(act)],
                timeout=ANSWER_TIMEOUT,
                then=then,
            )
        except psycopg.OperationalError as exc:
            self._log_silence(exc)
            return [Answer.UNKNOWN] * len(asks), "[]"
        except psycopg.Error:  # one of the tables was dropped
            return None, None
        self._log_silence(None)
        answers = _by_delivery([asks], rows)
        return [answers[each.delivery] for each in asks], said

    def extend(
        self, renewals: Sequence[Renewal], *, timeout: float = ANSWER_TIMEOUT
    ) -> list[Answer]:
        """Move expiries: a statement for each 1,000 leases, none after one without an answer."""
        asks = [_Ask(Delivery.parse(each.tag), each.seconds, each.late) for each in renewals]
        ends = self._clock.now() + timeout
        return ask_in_batches(
            asks, BATCH, lambda batch: self._ask(Act.EXTEND, batch, ends - self._clock.now())
        )

    def begin(self, tags: Sequence[str]) -> list[Answer]:
        return self._ask(Act.BEGIN, _asks(tags), ANSWER_TIMEOUT)

    def complete(self, tags: Sequence[str]) -> list[Answer]:
        """Delete messages, also parked ones by the tags that :meth:`keys_in_use` has for them."""
        purged = self._purge(tags)
        held = [tag for tag in tags if tag not in purged]
        purged |= zip(held, self._end(Act.COMPLETE, held), strict=True)
        return [purged[tag] for tag in tags]

    def requeue(
        self,
        tags: Sequence[str],
        *,
        orderly: bool = True,
        front: bool = True,
        why: Mapping[str, object] | None = None,
    ) -> list[Answer]:
        """Make messages visible at once; they are read in the order in which they were sent."""
        del front
        if why is not None and not orderly:
            for tag in tags:
                self._note(Delivery.parse(tag), why)
        return self._end(Act.HAND_BACK if orderly else Act.RELEASE, tags)

    def dead_letter(self, tag: str, queue: str, about: Mapping[str, str] | None = None) -> Answer:
        delivery, target = Delivery.parse(tag), self._names(queue)
        row = [delivery.msg_id, delivery.read_ct, delivery.read_at]
        try:
            self._run(dead.make(target))
            statement = dead.move(delivery.queue, target)
            values = [tag, delivery.queue, json.dumps(dict(about or {}))]
            then = self.keys.waking([tag])
            ((there, left),) = self._run(statement, *row, *values, tag, *row, then=then)
        except (psycopg.Error, OSError) as exc:
            self._log_silence(exc)
            return Answer.UNKNOWN
        answer = _answer(there, left)
        if answer is not Answer.UNKNOWN:
            self.keys.forget([tag])
        return answer

    def dead_letters(self) -> PgmqDeadLetters:
        return PgmqDeadLetters(self._run, self._names)

    def records(self) -> PgmqRecords:
        return PgmqRecords(self._run, self._names)

    def statement_timeout(self) -> int:
        """Return the milliseconds after which the server ends a statement; 0: never, or unknown."""
        try:
            ((limit,),) = self._run(_STATEMENT_TIMEOUT)
        except (psycopg.Error, OSError) as exc:
            self._log_silence(exc)
            return 0
        return int(limit)

    def _note(self, delivery: Delivery, why: Mapping[str, object]) -> None:
        """Add the facts of a loss to a message; without an answer it goes back without them."""
        facts = {"reason": LOST, "worker": self._worker, "token": delivery.token, **why}
        row = [delivery.msg_id, delivery.read_ct, delivery.read_at]
        try:
            self._run(dead.note(delivery.queue), *row, json.dumps(facts), delivery.token)
        except (psycopg.Error, OSError) as exc:
            self._log_silence(exc)

    def close(self) -> None:
        """Close the driver's connections; a later call opens them again."""
        self._connections.close()

    def _end(self, act: Act, tags: Sequence[str]) -> list[Answer]:
        """End leases, and in the same transaction wake who waits for their keys."""
        answers = self._ask(act, _asks(tags), ANSWER_TIMEOUT)
        self.keys.forget(
            tag for tag, answer in zip(tags, answers, strict=True) if answer is not Answer.UNKNOWN
        )
        return answers

    def _ask(self, act: Act, asks: Sequence[_Ask], timeout: float) -> list[Answer]:
        """Apply an act to all deliveries at once."""
        if not asks:
            return []
        queues: dict[str, list[_Ask]] = {}
        for each in asks:
            queues.setdefault(each.delivery.queue, []).append(each)
        answers = self._ask_queues(act, queues, timeout)
        return [answers.get(each.delivery, Answer.UNKNOWN) for each in asks]

    def _claiming(self, act: Act) -> list[object]:
        """Return what a claim takes beside the deliveries."""
        return [self._causes, self._worker] if act is Act.CLAIM else []

    def _ask_queues(
        self, act: Act, queues: Mapping[str, list[_Ask]], timeout: float
    ) -> dict[Delivery, Answer]:
        lists = list(queues.values())
        ended = lists if act in _ENDINGS else []
        last = self._claiming(act)
        try:
            rows = self._connections.run(
                statement(act, tuple(queues)),
                [each for asks in lists for each in (*_parameters(asks), *last)],
                timeout=timeout,
                then=self.keys.waking(each.delivery.tag for asks in ended for each in asks),
            )
        except psycopg.errors.UndefinedTable:
            return self._ask_one_by_one(act, queues, timeout)
        except (psycopg.Error, OSError) as exc:
            self._log_silence(exc)
            return {}
        self._log_silence(None)
        return _by_delivery(lists, rows)

    def _ask_one_by_one(
        self, act: Act, queues: Mapping[str, list[_Ask]], timeout: float
    ) -> dict[Delivery, Answer]:
        """Apply an act queue by queue: one of the queues was dropped, with its messages."""
        if len(queues) == 1:
            ((queue, asks),) = queues.items()
            count = counted(len(asks), "lease")
            logger.warning("queue %s does not exist: %s lost", queue, count)
            return {each.delivery: Answer.LOST for each in asks}
        answers: dict[Delivery, Answer] = {}
        ends = self._clock.now() + timeout
        for queue, asks in queues.items():
            answers |= self._ask_queues(act, {queue: asks}, ends - self._clock.now())
        return answers


def _asks(tags: Sequence[str]) -> list[_Ask]:
    return [_Ask(Delivery.parse(tag)) for tag in tags]


def _parameters(asks: Sequence[_Ask]) -> list[list[object]]:
    return parameters(
        [each.delivery for each in asks],
        [each.seconds for each in asks],
        [each.late for each in asks],
    )


def _by_delivery(
    lists: Sequence[Sequence[_Ask]], rows: Sequence[tuple[Any, ...]]
) -> dict[Delivery, Answer]:
    """Return the answers for what was asked of each queue."""
    there = {row[:3] for row in rows}
    done = {row[:3] for row in rows if row[3]}
    names = {
        each.delivery: (number, each.delivery.msg_id, each.delivery.read_ct)
        for number, asks in enumerate(lists)
        for each in asks
    }
    return {delivery: _answer(name in done, name in there) for delivery, name in names.items()}


def _answer(done: bool, there: bool) -> Answer:
    """Return the answer for a row; a row that is there and was not changed is locked."""
    if done:
        return Answer.HELD
    return Answer.UNKNOWN if there else Answer.LOST


def _causes(received: Sequence[ReceivedMessage], worker: str) -> dict[str, str]:
    """Return why the former holders of messages did not extend their leases, by worker."""
    holders = [each.headers and each.headers.get(HOLDER) for each in received]
    names = {str(each.get("worker")) for each in holders if isinstance(each, dict)}
    known = {each: cause_of_expiry(each, worker) for each in names}
    return {each: cause for each, cause in known.items() if cause}


def _claim(received: ReceivedMessage, answer: Answer, asked_at: float) -> Claim | None:
    delivery, seconds = received.delivery, received.terms.seconds
    if answer is Answer.UNKNOWN:
        seconds = min(seconds, received.hidden_until - asked_at)
    if answer is Answer.LOST or seconds <= 0:
        return None
    return Claim(
        tag=delivery.tag,
        token=delivery.token,
        queue=received.queue,
        deliveries=delivery.read_ct,
        losses=max(0, delivery.read_ct - 1 - received.returns),
        asked_at=asked_at,
        seconds=seconds,
        provisional=answer is Answer.UNKNOWN,
    )
