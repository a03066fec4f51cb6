"""The driver for Redis and Valkey: each step of a lease as a call of the server.

It decides nothing. Errors of the client library stop here and in :mod:`.server`: without a clear
answer the result is :attr:`Answer.UNKNOWN`.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.utils.encoding import bytes_to_str
from redis.exceptions import AuthenticationError

from celery_lease.brokers.qos import VirtualDriver
from celery_lease.brokers.redis import (
    channel as channels,
    exclusive as exclusive_keys,
    permissions,
    refusals,
)
from celery_lease.brokers.redis.client import ANSWER_TIMEOUT
from celery_lease.brokers.redis.dead import RedisDeadLetters
from celery_lease.brokers.redis.keys import Keys
from celery_lease.brokers.redis.plain import PlainSweep
from celery_lease.brokers.redis.records import RESTS, RedisRecords
from celery_lease.brokers.redis.server import Server
from celery_lease.brokers.redis.sweeps import Sweeps
from celery_lease.core.delivery import (
    Answer,
    Capabilities,
    Claim,
    Reaped,
    Renewal,
    Terms,
    ask_in_batches,
)
from celery_lease.core.errors import UnsupportedBroker
from celery_lease.core.keys import KeyAnswer, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_lease.brokers.redis.arrivals import Arrived
    from celery_lease.brokers.redis.checkpoint import RedisCheckpoints
    from celery_lease.brokers.redis.delivery import Delivery
    from celery_lease.brokers.redis.waiting import Stance
    from celery_lease.core.clock import Clock
    from celery_lease.core.findings import Doctor

logger = logging.getLogger(__name__)

#: Seconds that a bell lasts without a waiting channel.
RINGING = 10
#: Leases extended in one round trip, and by one script call, which takes the server 1 to 2 ms.
BATCH, PIECE = 1000, 250


class RedisDriver(VirtualDriver):
    """Leases in one Redis or Valkey database. Thread-safe; not for use across a fork."""

    capabilities = Capabilities(
        extends=True,
        fences=True,
        confirms=True,
        granularity=0.0,
        reaps=True,
        dead_letters=True,
        records=True,
        checkpoints=True,
        keys=True,
    )
    channel_class = channels.Leasing
    login_errors = (AuthenticationError,)
    visibility_timeout = 3600.0
    mixed_timeouts = (
        "On Redis every process that reads from the database returns plain messages that are held "
        "for longer than its own timeout: the shortest, {shortest} s, holds for all plain tasks. "
        "Leases expire by their own time."
    )

    def __init__(self, channel: Any) -> None:
        self.keys = Keys.of(channel)
        self.lines: Sequence[str] = ()  #: keys whose lines were listed last
        self.claims_keys = False  #: it may hold messages with exclusive keys
        self.server = Server(channel)
        self._sweeps = Sweeps(self.server, self.keys)
        self._plain = PlainSweep(channel)

    @classmethod
    def connect(cls, channel: Any, clock: Clock | None = None) -> RedisDriver:
        """Return a driver for the server and keys of a kombu *channel*.

        Raises:
            UnsupportedBroker: The channel keeps no record of unacknowledged messages.
        """
        del clock  # the server's clock is used
        if not channel.ack_emulation:
            raise UnsupportedBroker("redis with ack_emulation off", ("redis",))
        return cls(channel)

    @classmethod
    def bound(cls, connection: Any, seconds: float) -> None:
        """Set the timeouts of a connection to *seconds*; by default it waits for ever."""
        bounds = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        connection.transport_options = {**bounds, **(connection.transport_options or {})}

    unfit = staticmethod(permissions.unfit)
    lacking = staticmethod(permissions.lacking)
    will_pass = staticmethod(refusals.will_pass)

    @classmethod
    def checkpoints(cls, channel: Any, expires: int) -> RedisCheckpoints:
        from celery_lease.brokers.redis import checkpoint  # noqa: PLC0415  (few workers need it)

        return checkpoint.connect(channel, expires)

    @classmethod
    def doctor(cls) -> Doctor:
        from celery_lease.brokers.redis import doctor  # noqa: PLC0415  (no worker needs it)

        return doctor

    def end_receiving(self, channel: Any) -> None:
        channels.end_receiving(channel)

    def serve(self, worker: str) -> None:
        """Set this worker's identity: it knows that a former worker of its name died."""
        self._sweeps.worker = worker

    def follow(self, channel: Any) -> None:
        """Use the server of a new *channel*: kombu may have failed over to another broker URL.

        Leases at the former server no longer belong to this driver: they expire there.
        """
        self._plain = PlainSweep(channel)
        self.server.follow(channel)

    def claim(self, delivery: Delivery, terms: Terms, asked_at: float) -> Claim | KeyAnswer | None:
        """Put a message under a lease; return the answer about its key if it was parked.

        None: that failed or was not answered.
        """
        keys = [*self.keys.claims, self.keys.token, self.keys.refusals]
        value = f"[{delivery.payload}{delivery.suffix}"
        exclusive = delivery.exclusive(terms)
        self.claims_keys = self.claims_keys or exclusive is not None
        args = [delivery.tag, value, terms.seconds, delivery.record(terms), delivery.arrival]
        try:
            decides = "1" if exclusive is not None and exclusive.decides else ""
            reply = self.server.run("claim", keys, [*args, decides])
        except Exception as exc:  # noqa: BLE001  (any error: the message must not be lost)
            logger.error(  # noqa: TRY400  (the broker's error, not ours)
                "could not take a message of queue %s: %s", delivery.queue, exc
            )
            return None
        return None if reply is None else delivery.claimed(reply, terms, asked_at)

    def take_key(self, tag: str) -> KeyAnswer:
        return self.take_key_and_complete(tag, ())[0]

    def take_key_and_complete(
        self, tag: str, done: Sequence[str]
    ) -> tuple[KeyAnswer, list[Answer]]:
        keys = [*self.keys.claims, self.keys.token]
        try:
            reply = self.server.run("take", keys, [tag, *done])
            verdict, gone, by = bytes_to_str(reply).split(" ", 2)
        except Exception as exc:  # noqa: BLE001  (no answer, in as many ways as there are faults)
            logger.warning("exclusive key of a task not taken: %s", exc)
            return KeyAnswer(Verdict.UNKNOWN), [Answer.UNKNOWN] * len(done)
        answer = KeyAnswer(Verdict(verdict), by)
        return answer, [Answer.HELD if each == "1" else Answer.LOST for each in gone]

    keys_in_use = exclusive_keys.in_use
    key_in_use = exclusive_keys.use_of
    key_awaited_by = exclusive_keys.awaited_by
    first_parked = exclusive_keys.first_parked

    def parked(self) -> dict[str, int]:
        """Return how many messages of each queue wait for a key, after a sweep."""
        if not self._sweeps.any_held:
            return {}
        try:
            counts: Any = self.server.call(lambda client: client.hgetall(self.keys.parked))
        except Exception as exc:
            raise OSError(f"parked messages not counted: {exc}") from exc
        return {bytes_to_str(queue): int(count) for queue, count in counts.items()}

    def arrive(
        self,
        tag: str,
        seconds: float,
        lists: Mapping[str, str],
        *,
        by_name: bool,
        stance: Stance | None = None,
        claims: Sequence[Any] = (),
    ) -> tuple[Any, ...]:
        """Return the command that takes the next message of *lists*: full keys and their queues.

        Args:
            tag: The tag of the record that keeps the message until it is claimed or adopted.
            seconds: The time within which it has to be claimed.
            lists: In the order in which they are read: the first list of each queue, and so on.
            by_name: The server has the script already.
            stance: The facts about a channel that is notified of messages; None: it polls.
            claims: The worker as JSON, tasks without leases, and tasks with theirs: what is
                claimed, or recorded as a plain message, at once.
        """
        keys = [*self.keys.claims, self.keys.bell, *lists]
        said: tuple[Any, ...] = ("", "", 0)
        if stance is not None:
            said = (stance.channel, stance.letters, stance.heard)
        queues = tuple(dict.fromkeys(lists.values()))
        args = (tag, seconds, *said, len(queues), *queues, *claims)
        return self.server.command("arrive", keys, args, by_name=by_name)

    def leave(self, channel: str, queues: Sequence[str]) -> bool:
        """Stop watching *queues* and wake the next channels; return whether the server answered."""
        try:
            self.server.run("leave", self._places(queues), [channel, RINGING])
        except Exception as exc:  # noqa: BLE001  (others read the queues later)
            logger.debug("watching %s was not passed on: %s", ", ".join(queues), exc)
            return False
        return True

    def unblock(self, client_id: int) -> bool:
        """End the wait of a connection at the server; return whether the server answered."""
        try:
            self.server.call(lambda client: client.client_unblock(client_id))
        except Exception as exc:  # noqa: BLE001  (the wait ends by itself, later)
            logger.debug("the wait of connection %s was not ended: %s", client_id, exc)
            return False
        return True

    def adopt(self, arrival: str, tag: str, text: str) -> Answer:
        """Record a received message without a lease, as kombu does."""
        return self.server.ask("adopt", self.keys.claims, [arrival, tag, text], 1)[0]

    def extend(
        self, renewals: Sequence[Renewal], *, timeout: float = ANSWER_TIMEOUT
    ) -> list[Answer]:
        """Move expiries: one round trip for each 1,000 leases, none after one without answer."""

        def ask(batch: Sequence[Renewal]) -> list[Answer]:
            pieces = [_moves(batch[at : at + PIECE]) for at in range(0, len(batch), PIECE)]
            keys = self.keys.claims[:3]
            return self.server.ask_at_once("extend", keys, pieces, len(batch), timeout)

        return ask_in_batches(renewals, BATCH, ask)

    def begin(self, tags: Sequence[str]) -> list[Answer]:
        return self.server.ask_in_pieces("begin", self.keys.claims, [], tags)

    def complete(self, tags: Sequence[str]) -> list[Answer]:
        frees = self.claims_keys or any(each.endswith(RESTS) for each in tags)
        script = "complete" if frees else "acknowledge"
        return self.server.ask_in_pieces(script, self.keys.claims, [], tags)

    def requeue(
        self,
        tags: Sequence[str],
        *,
        orderly: bool = True,
        front: bool = True,
        why: Mapping[str, object] | None = None,
    ) -> list[Answer]:
        known = f"{json.dumps(why)[1:-1]}, " if why else ""
        how = ["1" if orderly else "0", "RPUSH" if front else "LPUSH", known]
        return self.server.ask_in_pieces("requeue", self.keys.claims, how, tags)

    def return_unclaimed(self, deliveries: Sequence[Delivery | Arrived]) -> list[Answer]:
        keys = [*self.keys.claims, self.keys.refusals]
        ask = partial(self.server.ask, "unclaim", keys, questions=1)
        timeout = self._plain.timeout
        facts = ([each.tag, each.key, each.unclaimed, each.arrival, timeout] for each in deliveries)
        return [ask(args=args)[0] for args in facts]

    def reap(self, *, limit: int) -> list[Reaped]:
        """Return expired leases to their queues; then, up to *limit* in all, plain messages.

        The messages that were claimed first end up at the front of their queues, in this order.
        """
        return self._sweeps.reap(limit, self._plain)

    def overdue(self, *, limit: int) -> list[Reaped]:
        """Return up to *limit* messages that a sweep would return, plain ones without a queue."""
        try:
            return self.server.call(lambda client: self._sweeps.overdue(client, limit, self._plain))
        except Exception as exc:
            raise OSError(f"expired leases not read: {exc}") from exc

    def dead_letter(self, tag: str, queue: str, about: Mapping[str, str] | None = None) -> Answer:
        keys = [*self.keys.claims, self.keys.refusals, self.keys.dead_letter_queues]
        args = [tag, self.keys.prefix + queue, queue, json.dumps(about or {})]
        return self.server.ask("dead_letter", keys, args, 1)[0]

    def dead_letters(self) -> RedisDeadLetters:
        return RedisDeadLetters(self)

    def records(self) -> RedisRecords:
        return RedisRecords(self)

    def keys_of(self, queue: str) -> list[str]:
        return self._plain.keys_of(queue)

    def store_unreadable(self, key: str, text: bytes) -> None:
        """Append an unreadable text to a list beside its queue's.

        Raises:
            OSError: There was no answer; it may or may not have been done.
        """
        try:
            self.server.call(lambda client: client.lpush(key, text))
        except Exception as exc:
            raise OSError(str(exc)) from exc

    def close(self) -> None:
        self.server.close()

    def _places(self, queues: Sequence[str]) -> list[str]:
        return [
            key
            for queue in queues
            for key in (self.keys.watcher_of(queue), self.keys.bell_of(queue))
        ]


def _moves(renewals: Sequence[Renewal]) -> list[Any]:
    """Return the arguments of ``extend.lua``."""
    return [
        json.dumps([each.tag for each in renewals]),
        json.dumps([each.seconds for each in renewals]),
        "".join("1" if each.late else "0" for each in renewals),
    ]
