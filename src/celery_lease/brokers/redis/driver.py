"""The lease commands of Redis and Valkey: run a script, translate what comes back.

Nothing here decides. Errors of the client library stop in this module: whatever was not answered
clearly is :attr:`Answer.UNKNOWN`.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from celery_lease.brokers.redis import scripts
from celery_lease.brokers.redis.client import ANSWER_TIMEOUT, Lines, address, pool_like
from celery_lease.brokers.redis.dead import RedisDeadLetters
from celery_lease.brokers.redis.keys import Keys
from celery_lease.brokers.redis.plain import PlainSweep
from celery_lease.brokers.redis.records import RedisRecords
from celery_lease.core.delivery import (
    Answer,
    Capabilities,
    Claim,
    Reaped,
    Renewal,
)
from celery_lease.core.errors import UnsupportedBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import redis

    from celery_lease.brokers.redis.attempt import Attempt
    from celery_lease.core.delivery import Terms

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Leases in one script call; Lua's unpack() takes about 8,000 values.
BATCH = 2000

_ANSWERS = {1: Answer.HELD, 0: Answer.LOST}


class RedisDriver:
    """Leases in one Redis or Valkey database. Thread-safe; not for use across a fork."""

    capabilities = Capabilities(
        extends=True,
        fences=True,
        confirms=True,
        granularity=0.0,
        reaps=True,
        buries=True,
        records=True,
    )

    def __init__(self, channel: Any) -> None:
        """Prepare for the server and keys of a kombu *channel*; nothing is sent."""
        self.keys = Keys.of(channel)
        self._connect(channel)

    def follow(self, channel: Any) -> None:
        """Go where a new *channel* goes: kombu may have failed over to another broker URL.

        Leases at the former server are not this driver's any more: they expire there.
        """
        self._plain = PlainSweep(channel)
        if address(channel) != self._address:
            logger.warning("leases follow the connection to another broker")
            self._lines.close()
            self._connect(channel)

    def claim(self, attempt: Attempt, terms: Terms, asked_at: float) -> Claim | None:
        """Take a message under a lease, or return None if that failed or was not answered."""
        keys = [*self.keys.claims, self.keys.token, self.keys.refusals]
        value = f"[{attempt.payload}{attempt.suffix}"
        args = [attempt.tag, value, terms.seconds, attempt.record(terms), attempt.arrival]
        try:
            token = self._run("claim", keys, args)
        except Exception as exc:  # noqa: BLE001  (whatever it was: the message must not be lost)
            logger.error(  # noqa: TRY400  (the broker's word, not ours)
                "could not take a message of queue %s: %s", attempt.queue, exc
            )
            return None
        if token is None:
            return None
        return Claim(
            tag=attempt.tag,
            token=int(token),
            queue=attempt.queue,
            deliveries=attempt.deliveries,
            losses=attempt.losses,
            asked_at=asked_at,
            seconds=terms.seconds,
        )

    def arrive(
        self, tag: str, seconds: float, lists: Mapping[str, str], *, by_name: bool
    ) -> tuple[Any, ...]:
        """Return the command that takes the next message of *lists*: full keys and their queues.

        Args:
            tag: Names the record that keeps the message until it is claimed or adopted.
            seconds: How long that may take.
            lists: In the order in which they are looked at.
            by_name: The server knows the script already.
        """
        script = self._scripts["arrive"]
        command = ("EVALSHA", script.sha) if by_name else ("EVAL", script.script)
        keys = [*self.keys.claims, self.keys.bell, *lists]
        return (*command, len(keys), *keys, tag, seconds, *lists.values())

    def adopt(self, arrival: str, tag: str, text: str) -> Answer:
        """Record a message that arrived as kombu records one without a lease."""
        return self._ask("adopt", self.keys.claims, [arrival, tag, text], 1)[0]

    def extend(
        self, renewals: Sequence[Renewal], *, timeout: float = ANSWER_TIMEOUT
    ) -> list[Answer]:
        """Move expiries: one round trip for each 2,000 leases, none after one without answer."""
        answers: list[Answer] = []
        for batch in _batches(renewals):
            args = [
                json.dumps([each.tag for each in batch]),
                json.dumps([each.seconds for each in batch]),
                "".join("1" if each.late else "0" for each in batch),
            ]
            answers += self._ask("extend", self.keys.claims[:3], args, len(batch), timeout)
            if answers[-1] is Answer.UNKNOWN:
                break
        return answers + [Answer.UNKNOWN] * (len(renewals) - len(answers))

    def complete(self, tags: Sequence[str]) -> list[Answer]:
        """Acknowledge messages."""
        return self._ask("complete", self.keys.claims, list(tags), len(tags))

    def hand_back(
        self, tags: Sequence[str], *, orderly: bool = True, front: bool = True
    ) -> list[Answer]:
        """Return messages to their queues in one script; the last of *tags* is delivered first."""
        args = ["1" if orderly else "0", "RPUSH" if front else "LPUSH", *tags]
        return self._ask("hand_back", self.keys.claims, args, len(tags))

    def return_unclaimed(self, attempts: Sequence[Attempt]) -> list[Answer]:
        """Return messages that were popped but maybe never claimed."""
        keys = [*self.keys.claims, self.keys.refusals]
        return [
            self._ask("unclaim", keys, [each.tag, each.key, each.unclaimed, each.arrival], 1)[0]
            for each in attempts
        ]

    def reap(self, *, limit: int) -> list[Reaped]:
        """Return expired leases to their queues; then, as far as *limit* goes, plain messages."""
        try:
            replies = self._run("reap", [*self.keys.claims, self.keys.refusals], [limit])
        except Exception as exc:
            raise OSError(f"expired leases not returned: {exc}") from exc
        reaped = [_reaped(*each) for each in replies]
        return reaped + self._sweep(limit - sum(not each.error for each in reaped))

    def overdue(self, *, limit: int) -> list[Reaped]:
        """Return what a sweep would return, without its queues, as far as *limit* goes."""
        try:
            return self.call(lambda client: self._overdue(client, limit))
        except Exception as exc:
            raise OSError(f"expired leases not read: {exc}") from exc

    def bury(self, tag: str, queue: str) -> Answer:
        """Move a message to a dead-letter queue."""
        keys = [*self.keys.claims, self.keys.refusals, self.keys.graveyards]
        return self._ask("bury", keys, [tag, self.keys.prefix + queue, queue], 1)[0]

    def dead_letters(self) -> RedisDeadLetters:
        """Return the dead-letter queues."""
        return RedisDeadLetters(self)

    def records(self) -> RedisRecords:
        """Return what can be looked up without a worker."""
        return RedisRecords(self)

    def keys_of(self, queue: str) -> list[str]:
        """Return the full keys of a queue's lists, the one that is read first at the front."""
        return self._plain.keys_of(queue)

    def exhume(self, queue: str, source: str, target: str, letter: bytes, text: str) -> bool:
        """Move one letter from a dead-letter queue's key to another, or away if *text* is empty.

        Raises:
            redis.RedisError: That was not answered; it may or may not have been done.
        """
        keys = [self.keys.index, self.keys.unacked, self.keys.graveyards, source, target]
        return bool(self._run("exhume", keys, [queue, letter, text]))

    def call(self, command: Callable[[redis.Redis], T]) -> T:
        """Run a *command* with a client.

        Raises:
            redis.RedisError: It failed, or was not answered in time.
        """
        return self._lines.call(command)

    def set_aside(self, key: str, text: bytes) -> None:
        """Append what cannot be read as a message to a list beside its queue's.

        Raises:
            OSError: That was not answered; it may or may not have been done.
        """
        try:
            self._lines.call(lambda client: client.lpush(key, text))
        except Exception as exc:
            raise OSError(str(exc)) from exc

    def close(self) -> None:
        """Close the driver's connections."""
        self._lines.close()

    def _sweep(self, limit: int) -> list[Reaped]:
        """Return overdue plain messages; a failure is only told, leases were returned before."""
        if limit <= 0:
            return []
        try:
            return self._plain.run(
                limit,
                lambda args: self._run("sweep", self.keys.claims, args),
                self._members,
            )
        except Exception as exc:  # noqa: BLE001  (whatever it was, the next sweep tries again)
            logger.warning("no sweep for messages without a lease: %s", exc)
            return []

    def _members(self, key: str) -> Any:
        return self.call(lambda client: client.smembers(key))

    def _overdue(self, client: redis.Redis, limit: int) -> list[Reaped]:
        clock: Any = client.time()
        now = clock[0] + clock[1] / 1e6
        _, _, leases, claims = self.keys.claims
        due: Any = client.zrangebyscore(leases, "-inf", now, start=0, num=limit, withscores=True)
        records: Any = client.hmget(claims, [tag for tag, _ in due]) if due else []
        expired = [
            _reaped(tag, now - score, record, b"")
            for (tag, score), record in zip(due, records, strict=True)
            if record is not None
        ]
        plain = self._plain.overdue(client, self.keys.index, claims, now, limit - len(expired))
        return expired + [
            Reaped(tag=tag, queue="", late=late, about={}, leased=False) for tag, late in plain
        ]

    def _connect(self, channel: Any) -> None:
        self._plain = PlainSweep(channel)
        self._address = address(channel)
        self._lines = Lines(pool_like(channel))
        self._scripts = scripts.register(self._lines.client)

    def _ask(
        self,
        name: str,
        keys: list[str],
        args: list[Any],
        questions: int,
        timeout: float | None = None,
    ) -> list[Answer]:
        if not questions:
            return []
        try:
            replies = self._run(name, keys, args, timeout)
        except Exception as exc:  # noqa: BLE001  (no answer, in as many ways as there are faults)
            logger.warning("%s of %d leases not answered: %s", name, questions, exc)
            return [Answer.UNKNOWN] * questions
        if isinstance(replies, bytes):
            replies = replies.decode()
        elif isinstance(replies, int):
            replies = [replies]
        return [_ANSWERS[int(reply)] for reply in replies]

    def _run(
        self, name: str, keys: list[str], args: list[Any], timeout: float | None = None
    ) -> Any:
        def command(client: redis.Redis) -> Any:
            return self._scripts[name](keys=keys, args=args, client=client)

        if timeout is None:
            return self._lines.call(command)
        return self._lines.call_within(command, timeout)


def connect(channel: Any) -> RedisDriver:
    """Make a driver for the server and keys of a kombu *channel*.

    Raises:
        UnsupportedBroker: The channel keeps no record of unacknowledged messages.
    """
    if not channel.ack_emulation:
        raise UnsupportedBroker("redis with ack_emulation off", ("redis",))
    return RedisDriver(channel)


def _batches(renewals: Sequence[Renewal]) -> Iterator[Sequence[Renewal]]:
    for start in range(0, len(renewals), BATCH):
        yield renewals[start : start + BATCH]


def _reaped(tag: bytes, late: float | bytes, record: bytes, error: bytes) -> Reaped:
    about = json.loads(record)
    return Reaped(
        tag=tag.decode(),
        queue=about["queue"],
        late=float(late),
        about=about,
        error=error.decode(errors="replace"),
        rested=about.get("resting", False),
        unclaimed=about.get("arriving", False),
    )
