"""The lease commands of Redis and Valkey: run a script, translate what comes back.

Nothing here decides. Errors of the client library stop in this module: whatever was not answered
clearly is :attr:`Answer.UNKNOWN`.
"""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis
from kombu.utils.json import dumps

from celery_lease.brokers.redis import scripts
from celery_lease.brokers.redis.client import ANSWER_TIMEOUT, Line, pool_like
from celery_lease.core.delivery import (
    Answer,
    Capabilities,
    Claim,
    Reaped,
    Renewal,
    Terms,
)
from celery_lease.core.errors import UnsupportedBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

logger = logging.getLogger(__name__)

#: Leases in one script call; Lua's unpack() takes about 8,000 values.
BATCH = 2000

_ANSWERS = {1: Answer.HELD, 0: Answer.LOST}


@dataclass(frozen=True, slots=True)
class Keys:
    """Full names, prefix included, of the keys of one database, prefix and ``unacked_key``."""

    index: str
    unacked: str

    @classmethod
    def of(cls, channel: Any) -> Keys:
        """Read them off a kombu channel."""
        prefix = channel.global_keyprefix
        return cls(prefix + channel.unacked_index_key, prefix + channel.unacked_key)

    @property
    def claims(self) -> list[str]:
        """The four keys that every script takes, in their order."""
        return [self.index, self.unacked, f"{self.unacked}.leases", f"{self.unacked}.claims"]

    @property
    def token(self) -> str:
        """The last fencing token."""
        return f"{self.unacked}.token"

    @property
    def refusals(self) -> str:
        """Claims that were given up unanswered."""
        return f"{self.unacked}.refusals"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to claim a message that was popped from a queue."""

    tag: str
    key: str  #: the list it came from
    payload: str  #: what to push there, counters included
    suffix: str  #: what kombu's own restore wants behind it
    queue: str
    deliveries: int
    losses: int

    @classmethod
    def of(cls, message: Any, queue: str, key: str) -> Attempt:
        """Prepare a kombu *message*'s text so that it can go back without being decoded again."""
        raw = message._raw
        deliveries, losses = _counters(raw.get("lease"))
        text = dumps(_redelivered(raw))
        counted = f'{{"lease": "{deliveries + 1:06d}:{losses + 1:06d}", {text[1:]}'
        info = message.delivery_info
        suffix = f", {dumps(info.get('exchange'))}, {dumps(info.get('routing_key'))}]"
        tag = f"{message.delivery_tag}#{uuid.uuid4().hex[:12]}"
        return cls(tag, key, counted, suffix, queue, deliveries + 1, losses)

    @property
    def unclaimed(self) -> str:
        """The payload as it was before this delivery: it did not take place."""
        head = f'{{"lease": "{self.deliveries - 1:06d}:{self.losses:06d}"'
        return head + self.payload[len(head) :]


class RedisDriver:
    """Leases in one Redis or Valkey database. Thread-safe; not for use across a fork."""

    capabilities = Capabilities(extends=True, fences=True, confirms=True, granularity=0.0)

    def __init__(self, pool: redis.ConnectionPool, keys: Keys) -> None:
        self.keys = keys
        self._pool = pool
        self._client = redis.Redis(connection_pool=pool)
        self._line = Line(pool)
        self._scripts: dict[str, Any] | None = None

    def claim(self, attempt: Attempt, terms: Terms, asked_at: float) -> Claim | None:
        """Take a message under a lease, or return None if that failed or was not answered."""
        record = {
            "cut": len(attempt.suffix.encode()),
            "key": attempt.key,
            "deliveries": attempt.deliveries,
            "losses": attempt.losses,
            **terms.about,
        }
        keys = [*self.keys.claims, self.keys.token, self.keys.refusals]
        value = f"[{attempt.payload}{attempt.suffix}"
        args = [attempt.tag, value, terms.seconds, json.dumps(record)]
        try:
            token = self._run("claim", keys, args)
        except redis.RedisError as exc:
            logger.error("could not take a message of queue %s: %s", attempt.queue, exc)
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

    def extend(
        self, renewals: Sequence[Renewal], *, timeout: float = ANSWER_TIMEOUT
    ) -> list[Answer]:
        """Move expiries: one round trip for each 2,000 leases."""
        answers: list[Answer] = []
        for batch in _batches(renewals):
            args = [x for r in batch for x in (r.tag, r.seconds, "1" if r.late else "0")]
            answers += self._ask("extend", self.keys.claims[:3], args, len(batch), timeout)
        return answers

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
            self._ask("unclaim", keys, [each.tag, each.key, each.unclaimed], 1)[0]
            for each in attempts
        ]

    def reap(self, *, limit: int) -> list[Reaped]:
        """Return expired leases to their queues."""
        try:
            reaped = self._run("reap", self.keys.claims, [limit])
        except redis.RedisError as exc:
            raise OSError(str(exc)) from exc
        return [_reaped(*each) for each in reaped]

    def close(self) -> None:
        """Close the driver's connections."""
        self._line.close()
        self._pool.disconnect()

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
        except redis.RedisError as exc:
            logger.warning("%s of %d leases not answered: %s", name, questions, exc)
            return [Answer.UNKNOWN] * questions
        if not isinstance(replies, list):
            replies = [replies]
        return [_ANSWERS[int(reply)] for reply in replies]

    def _run(self, name: str, keys: list[str], args: list[Any], timeout: float | None = None) -> Any:
        if timeout is None:
            return self._script(name)(keys=keys, args=args)
        return self._line.call(
            lambda client: self._script(name)(keys=keys, args=args, client=client),
            timeout=timeout,
        )

    def _script(self, name: str) -> Callable[..., Any]:
        if self._scripts is None:
            self._scripts = scripts.load(self._client)
        return self._scripts[name]


def connect(channel: Any) -> RedisDriver:
    """Make a driver for the server and keys of a kombu *channel*.

    Raises:
        UnsupportedBroker: The channel keeps no record of unacknowledged messages.
    """
    if not channel.ack_emulation:
        raise UnsupportedBroker("redis with ack_emulation off", ("redis",))
    return RedisDriver(pool_like(channel), Keys.of(channel))


def _batches(renewals: Sequence[Renewal]) -> Iterator[Sequence[Renewal]]:
    for start in range(0, len(renewals), BATCH):
        yield renewals[start : start + BATCH]


def _reaped(tag: bytes, late: bytes, record: bytes) -> Reaped:
    about = json.loads(record)
    return Reaped(tag=tag.decode(), queue=about["key"], late=float(late), about=about)


def _counters(text: object) -> tuple[int, int]:
    """Read deliveries and losses from a payload; what is not ours counts as a first delivery."""
    match str(text).split(":"):
        case [deliveries, losses] if deliveries.isdecimal() and losses.isdecimal():
            return min(int(deliveries), 999_998), min(int(losses), 999_998)
    return 0, 0


def _redelivered(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a kombu payload, without our counters, flagged as redelivered.

    The flags are those that kombu's own restore sets. The message at hand is not touched.
    """
    copy = {key: value for key, value in raw.items() if key != "lease"}
    if isinstance(raw.get("headers"), dict):
        copy["headers"] = {**raw["headers"], "redelivered": True}
    properties = raw["properties"]
    info = {**(properties.get("delivery_info") or {}), "redelivered": True}
    copy["properties"] = {**properties, "delivery_info": info}
    return copy
