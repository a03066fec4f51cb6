"""The lease calls of RabbitMQ: a table of deliveries, and one frame for each that is settled."""

from __future__ import annotations

import logging
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError

from celery_lease.brokers.amqp import dead
from celery_lease.brokers.amqp.counts import Counts
from celery_lease.brokers.amqp.dead import AmqpDeadLetters
from celery_lease.brokers.amqp.delivery import Delivery
from celery_lease.brokers.amqp.frames import is_cut
from celery_lease.brokers.amqp.tokens import Tokens
from celery_lease.brokers.losses import Losses
from celery_lease.core.clock import SystemClock
from celery_lease.core.delivery import Answer, Capabilities, Claim, Reaped, Renewal, Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_lease.brokers.amqp.limits import Limit
    from celery_lease.core.clock import Clock

logger = logging.getLogger(__name__)

#: Seconds after its expiry at which a message is returned whose holder did not return it: a
#: worker's watchdog ends the task first.
GRACE = 2.0
#: Heartbeats that go out with extensions, in each interval that was agreed with the broker.
BEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A message as it came, before it is claimed."""

    channel: Any
    number: int
    queue: str
    limit: Limit
    message_id: str
    headers: Mapping[str, Any]
    redelivered: bool
    raw: Any = None  #: the message as it came
    is_dead_lettered: bool = False  #: its queue has a dead-letter exchange


class AmqpDriver:
    """Leases on the channels of one process. Thread-safe; not for use across a fork."""

    capabilities = Capabilities(
        extends=True,
        fences=True,
        confirms=False,
        granularity=0.0,
        tells_losses=False,
        buries=True,
        drops=True,
    )

    def __init__(self, clock: Clock, dial: Callable[[], Any] | None = None) -> None:
        """*dial* makes a kombu connection to the same broker."""
        self._clock = clock
        self._dial = dial or _nowhere
        self._tokens, self._counts, self._losses = Tokens(clock), Counts(), Losses()
        self._letters = AmqpDeadLetters(self._dial)
        self._name = uuid.uuid4().hex[:8]
        #: Guards the table and the expiries in it; held for neither a call nor a callback.
        self._lock = threading.Lock()
        self._deliveries: dict[str, Delivery] = {}
        self._beaten: dict[int, float] = {}  # last heartbeats, by connection; the keeper's thread

    def claim(self, arrival: Arrival, terms: Terms, now: float) -> Claim:
        """Put an expiry to a message that has just arrived."""
        arrival.limit.tell(terms.longest)
        token = self._tokens.next()
        seconds = min(terms.seconds, arrival.limit.seconds)
        tag = f"{self._name}.{token}.{arrival.number}"
        name, again = arrival.message_id, arrival.redelivered
        deliveries = self._counts.count(name, arrival.headers, redelivered=again)
        losses = self._losses.delivered(tag, name, again=again)
        with self._lock:
            self._deliveries[tag] = Delivery(
                channel=arrival.channel,
                number=arrival.number,
                queue=arrival.queue,
                about=terms.about,
                expiry=now + seconds,
                raw=arrival.raw,
                deliveries=deliveries,
                losses=losses,
                is_dead_lettered=arrival.is_dead_lettered,
            )
        return Claim(
            tag=tag,
            token=token,
            queue=arrival.queue,
            deliveries=deliveries,
            losses=losses,
            asked_at=now,
            seconds=seconds,
            limit=arrival.limit.seconds,
        )

    def extend(self, renewals: Sequence[Renewal], *, timeout: float = 0.0) -> list[Answer]:
        """Move expiries; no call is made, but for a heartbeat on a connection that is worked on."""
        del timeout
        now = self._clock.now()
        connections = self._open_connections(renewals)
        for connection in connections.values():
            self._beat(connection, now)
        with self._lock:
            return [self._extend(each, now, connections) for each in renewals]

    def complete(self, tags: Sequence[str]) -> list[Answer]:
        """Acknowledge messages."""
        return self._settle(tags, Delivery.acknowledge)

    def drop(self, tags: Sequence[str]) -> list[Answer]:
        """Reject messages for good."""
        return self._settle(tags, Delivery.drop)

    def hand_back(
        self, tags: Sequence[str], *, orderly: bool = True, front: bool = True
    ) -> list[Answer]:
        """Requeue messages. RabbitMQ puts them where they were if it can."""
        del front
        # Before they go back: a holder that takes nothing more would be given them again.
        for channel in {held.channel for tag in tags if (held := self._deliveries.get(tag))}:
            channel.stop_if_backlogged()
        if not orderly:
            for tag in tags:
                self._losses.lost(tag)
        return self._settle(tags, lambda held: held.give_back(orderly=orderly))

    def return_unclaimed(self, attempts: Sequence[Any]) -> list[Answer]:
        """Do nothing: every claim succeeds."""
        return [Answer.HELD] * len(attempts)

    def reap(self, *, limit: int) -> list[Reaped]:
        """Return expired messages of this process whose holder failed to; there are no others."""
        now = self._clock.now()
        with self._lock:
            late = [tag for tag, held in self._deliveries.items() if now >= held.expiry + GRACE]
            taken = [(tag, self._deliveries.pop(tag)) for tag in late[:limit]]
        for tag, _ in taken:
            self._losses.lost(tag)
        return [
            Reaped(tag=tag, queue=held.queue, late=now - held.expiry, about=held.about)
            for tag, held in taken
            if held.give_back(orderly=False)
        ]

    def forget(self, channel: Any) -> list[str]:
        """Drop the deliveries of a channel that is closing, and return their tags."""
        with self._lock:
            tags = [tag for tag, held in self._deliveries.items() if held.channel is channel]
            for tag in tags:
                del self._deliveries[tag]
        return tags

    def bury(self, tag: str, queue: str) -> Answer:
        """Leave a message to its queue's dead-letter exchange, if it has one.

        Else copy it to a dead-letter queue, and acknowledge it when RabbitMQ has the copy.
        """
        held = self._deliveries.get(tag)
        if held is None or held.channel.connection is None:
            return Answer.LOST
        if held.is_dead_lettered:
            return self.drop([tag])[0]
        try:
            with self._dial() as connection:
                dead.copy(connection, held.raw, queue, self._told(held))
        except (AMQPError, OperationalError, OSError) as exc:
            logger.warning("message not copied to dead-letter queue %s: %s", queue, exc)
            return Answer.UNKNOWN
        return self.complete([tag])[0]

    def dead_letters(self) -> AmqpDeadLetters:
        """Return the dead-letter queues; what is looked at there is kept until :meth:`close`."""
        return self._letters

    def close(self) -> None:
        """Close what is open of the driver's own; those of the leases are kombu's."""
        self._letters.close()

    def _told(self, held: Delivery) -> dict[str, Any]:
        return {
            "queue": held.queue,
            "deliveries": held.deliveries,
            "losses": held.losses,
            "at": self._clock.wall().timestamp(),
        }

    def _open_connections(self, renewals: Sequence[Renewal]) -> dict[int, Any]:
        """Return the connections that messages came by and that are open, by their ids."""
        found = {}
        for each in renewals:
            held = self._deliveries.get(each.tag)
            if held is not None and (connection := held.channel.connection) is not None:
                found[id(connection)] = connection
        return {number: each for number, each in found.items() if not is_cut(each)}

    def _extend(self, renewal: Renewal, now: float, connections: Mapping[int, Any]) -> Answer:
        held = self._deliveries.get(renewal.tag)
        if held is None or id(held.channel.connection) not in connections:
            return Answer.LOST
        if now >= held.expiry and not renewal.late:
            return Answer.LOST
        held.expiry = now + renewal.seconds
        return Answer.HELD

    def _settle(self, tags: Sequence[str], settle: Callable[[Delivery], bool]) -> list[Answer]:
        answers = []
        for tag in tags:
            with self._lock:
                held = self._deliveries.pop(tag, None)
            done = held is not None and settle(held)
            answers.append(Answer.HELD if done else Answer.LOST)
        return answers

    def _beat(self, connection: Any, now: float) -> None:
        """Let the broker hear of a connection whose main loop may stand still."""
        interval = (connection.heartbeat or 0) / BEATS
        if not interval or now - self._beaten.get(id(connection), 0.0) < interval:
            return
        self._beaten = {id(connection): now}
        with suppress(AMQPError, OSError):  # whoever reads the connection finds out
            connection.send_heartbeat()


def connect(channel: Any, clock: Clock | None = None) -> AmqpDriver:
    """Make a driver; its connections are those of the channels that are leased."""
    client = channel.connection.client

    def dial() -> Any:
        return client.clone(connect_timeout=dead.PATIENCE)

    return AmqpDriver(clock or SystemClock(), dial)


def _nowhere() -> Any:
    raise OSError("no way to the broker")
