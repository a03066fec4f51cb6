"""A kombu consumer under leases inside the test's own process, for any broker with a driver.

``Bench`` is a broker, ``Desk`` a consumer at it; the conformance suite uses both.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from kombu import Connection, Consumer, Producer, Queue

from celery_lease import brokers
from celery_lease.brokers.connection import LeasingConnection
from celery_lease.core.clock import SystemClock
from celery_lease.core.delivery import Answer, Claim, Renewal, Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@dataclass
class Holder:
    """Leases every message, settles at once, and records the calls."""

    seconds: float
    driver: Any = None
    claims: list[Claim] = field(default_factory=list)
    not_claimed: list[Any] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)
    gone: list[str] = field(default_factory=list)  #: tags that the broker delivered elsewhere
    outrun: list[Any] = field(default_factory=list)  #: messages that RabbitMQ returned
    backlogged: bool = False  #: takes no more messages
    leases: Callable[[Any], bool] = lambda _: True
    plain: str = ""  #: the task that never has a lease
    about: dict[str, Any] = field(default_factory=dict)  #: more of what a claim remembers
    waits: bool = False  #: its tasks begin later

    def terms(self, message: Any) -> Terms | None:
        if not self.leases(message):
            return None
        about = {"id": message.delivery_tag, **self.about}
        return Terms(seconds=self.seconds, waits=self.waits, about=about)

    def plain_task(self, message: Any) -> str:
        return self.plain if message.headers.get("task") == self.plain else ""

    def claimed(self, claim: Claim, message: Any) -> None:
        message.claim = claim
        self.claims.append(claim)
        if claim.provisional:  # the lease has the broker's own length
            self.driver.extend([Renewal(claim.tag, self.seconds)], timeout=5.0)

    def complete(self, tag: str) -> None:
        self.answers += self.driver.complete([tag])

    def drop(self, tag: str) -> None:
        self.answers += self.driver.drop([tag])

    def lost(self, tags: Sequence[str]) -> None:
        self.gone += tags

    def requeue(self, tags: Sequence[str], *, front: bool) -> None:
        self.answers += self.driver.requeue(tags, orderly=True, front=front)

    def keeps(self, tag: str) -> bool:
        return tag in self.kept

    def outran(self, message: Any, held: float, queue: str, timeout: float) -> bool:
        self.outrun.append((message.payload, held, queue, timeout))
        return True

    def parked(self, message: Any, queue: str, by: str) -> None:
        """Do nothing: no message here needs a key."""

    def unclaimed(self, delivery: Any) -> None:
        self.not_claimed.append(delivery)


class Desk:
    """One connection, one channel under leases, one driver, one consumer of some queues."""

    def __init__(
        self,
        url: str,
        *queues: Queue | str,
        seconds: float = 30.0,
        prefetch: int = 0,
        options: Mapping[str, Any] | None = None,
        **connection: Any,
    ) -> None:
        self.connection = LeasingConnection(
            url, transport_options=dict(options or {}), **connection
        )
        channel: Any = self.connection.channel()
        self.channel = channel
        self.channel.brpop_timeout = 0.2  # Redis: closing waits for the last answer
        self.holder = Holder(seconds)
        self.driver: Any = brokers.driver(self.channel)
        self.holder.driver = self.driver
        self.clock = SystemClock()
        self.driver.lease_messages(self.channel, self.holder, self.clock)
        self.received: list[Any] = []
        declared = [Queue(queue) if isinstance(queue, str) else queue for queue in queues or ("q",)]
        self.consumer = Consumer(self.channel, declared, on_message=self.received.append)
        self.consumer.qos(prefetch_count=prefetch)
        self.consumes = False

    def turn(self, seconds: float = 0.2) -> None:
        """Let the connection work until an event, at most for *seconds*.

        The first turn begins to consume: before that no broker delivers to it.
        """
        if not self.consumes:
            self.consumes = True
            self.consumer.consume()
        with contextlib.suppress(TimeoutError):
            self.connection.drain_events(timeout=seconds)

    def receive(self, count: int = 1, within: float = 10.0) -> list[Any]:
        """Return the next messages.

        Raises:
            AssertionError: There are fewer after *within* seconds.
        """
        end = self.clock.now() + within
        while len(self.received) < count:
            if self.clock.now() >= end:
                raise AssertionError(f"{len(self.received)} of {count} messages received")
            self.turn()
        got = self.received[:count]
        del self.received[:count]
        return got

    def receives_nothing(self, during: float = 0.5) -> bool:
        """Whether no message arrives within *during* seconds."""
        end = self.clock.now() + during
        while self.clock.now() < end and not self.received:
            self.turn(0.1)
        return not self.received

    def extend(self, message: Any, seconds: float = 30.0, *, late: bool = False) -> Answer:
        """Ask for a lease on ``message`` of ``seconds`` from now."""
        answers: list[Answer] = self.driver.extend(
            [Renewal(message.claim.tag, seconds, late)], timeout=5.0
        )
        return answers[0]

    def close(self) -> None:
        self.connection.release()
        self.driver.close()

    def stop(self) -> None:
        self.consumes = True
        self.consumer.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Bench:
    """One broker, and the actions of tests on it."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    connection: dict[str, Any] = field(default_factory=dict)
    shortest: float = 0.3  #: seconds of a lease that will be lost
    lacks: set[str] = field(default_factory=set)  #: features that the broker lacks
    desks: list[Desk] = field(default_factory=list)

    def desk(self, *queues: Queue | str, **settings: Any) -> Desk:
        """Return a new consumer under leases."""
        settings["options"] = {**self.options, **settings.get("options", {})}
        self.desks.append(Desk(self.url, *queues, **self.connection, **settings))
        return self.desks[-1]

    def close(self) -> None:
        """Close every consumer that is still open."""
        for desk in self.desks:
            desk.close()

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        """Yield a plain kombu channel."""
        with Connection(
            self.url, transport_options=dict(self.options), **self.connection
        ) as connection:
            yield connection.default_channel

    def publish(self, *bodies: object, queue: Queue | str = "q", **properties: Any) -> None:
        """Send messages; the first is delivered first."""
        target = Queue(queue) if isinstance(queue, str) else queue
        with self.channel() as channel:
            target(channel).declare()
            route = {"exchange": target.exchange, "routing_key": target.routing_key or target.name}
            for body in bodies:
                Producer(channel).publish(body, **{**route, **properties})

    def waiting(self, queue: str = "q") -> int:
        """Return the number of messages in a queue."""
        with self.channel() as channel:
            return int(channel.queue_declare(queue).message_count)


def bodies(messages: Sequence[Any]) -> list[Any]:
    """Return the payloads of messages."""
    return [message.payload for message in messages]
