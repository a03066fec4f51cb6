"""RabbitMQ's driver: a table of deliveries, and one frame for each message that is settled."""

from __future__ import annotations

import logging
import threading
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AccessRefused, AMQPError, NotAllowed
from kombu.exceptions import OperationalError
from kombu.transport import pyamqp

from celery_lease.brokers.amqp import channel as channels, dead
from celery_lease.brokers.amqp.counts import Counts
from celery_lease.brokers.amqp.dead import AmqpDeadLetters
from celery_lease.brokers.amqp.delivery import Delivery
from celery_lease.brokers.amqp.frames import is_cut
from celery_lease.brokers.amqp.limits import faulty_option
from celery_lease.brokers.amqp.reader import Reader, reader_of
from celery_lease.brokers.amqp.tokens import Tokens
from celery_lease.brokers.losses import Losses
from celery_lease.brokers.qos import changed, mixed
from celery_lease.core.clock import Clock, SystemClock
from celery_lease.core.delivery import Answer, Capabilities, Claim, Holder, Reaped, Renewal, Terms
from celery_lease.core.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from celery_lease.core.findings import Doctor

logger = logging.getLogger(__name__)

#: Seconds after its expiry at which the reaper returns a message that its holder did not return:
#: the worker's watchdog ends the task first.
GRACE = 2.0
#: Heartbeats sent with extensions in each interval that was agreed with the broker.
BEATS = 3


class AmqpDriver(Driver):
    """Leases on the channels of one process. Thread-safe; not for use across a fork."""

    capabilities = Capabilities(
        extends=True,
        fences=True,
        confirms=False,
        granularity=0.0,
        reports_losses=False,
        dead_letters=True,
        drops=True,
        outlives=False,
    )
    label = "RabbitMQ"
    login_errors = (AccessRefused, NotAllowed)
    unrecorded = (
        "RabbitMQ does not say which messages are held, or by whom: what a worker holds that does "
        "not reply is known only from what it said before"
    )
    lookup = (
        "RabbitMQ does not say which messages wait in a queue, or which worker has one that does "
        "not reply; how many there are: rabbitmqctl list_queues name messages_ready "
        "messages_unacknowledged"
    )
    skewed = (
        "Fencing tokens are workers' clocks on RabbitMQ: those of a later delivery may be smaller. "
        "ETAs and expiry times of tasks are off, too."
    )

    def __init__(self, clock: Clock, dial: Callable[[], Any] | None = None) -> None:
        """*dial* opens a kombu connection to the same broker."""
        self._clock = clock
        self._dial = dial or _nowhere
        self._tokens, self._counts, self._losses = Tokens(), Counts(), Losses(clock)
        self._letters = AmqpDeadLetters(self._dial)
        self._name = uuid.uuid4().hex[:8]
        #: Guards the table and the expiries in it; not held during calls or callbacks.
        self._lock = threading.Lock()
        self._deliveries: dict[str, Delivery] = {}
        self._beaten: dict[int, float] = {}  # last heartbeats, by connection; the keeper's thread

    @classmethod
    def connect(cls, channel: Any, clock: Clock | None = None) -> AmqpDriver:
        """Return a driver; it works on the connections of the leased channels."""
        client = channel.connection.client

        def dial() -> Any:
            connection = client.clone(connect_timeout=dead.ANSWER_TIMEOUT)
            connection.connection.sock.settimeout(dead.ANSWER_TIMEOUT)  # its default waits for ever
            return connection

        return cls(clock or SystemClock(), dial)

    @classmethod
    def lacking(cls, channel: Any, use: Any) -> tuple[str, str] | None:
        """Return the fault of the transport option ``consumer_timeout``, and the remedy."""
        del use
        return faulty_option(channel.connection.client.transport_options or {})

    @classmethod
    def doctor(cls) -> Doctor:
        from celery_lease.brokers.amqp import doctor  # noqa: PLC0415  (no worker needs it)

        return doctor

    @classmethod
    def transport_class(cls, kombus: Any) -> Any:
        if not issubclass(kombus, pyamqp.Transport):
            return kombus
        channel = mixed(channels.Leasing, kombus.Connection.Channel)
        return changed(kombus, "Connection", changed(kombus.Connection, "Channel", channel))

    def lease_messages(self, channel: Any, holder: Holder, clock: Clock) -> None:
        if not isinstance(channel, channels.Leasing):  # of a connection that another program opened
            channel.__class__ = mixed(channels.Leasing, type(channel))
        channel.begin_leases(self, holder, clock)

    will_pass = staticmethod(channels.will_pass)
    turn = staticmethod(channels.turn)
    tend = staticmethod(channels.tend)
    catch_up = staticmethod(channels.catch_up)

    def claim(self, delivery: Delivery, terms: Terms, now: float) -> Claim:
        limit, name, again = delivery.limit, delivery.message_id, delivery.redelivered
        limit.log_if_short(terms.longest)
        at = self._clock.wall().timestamp()
        token = self._tokens.next(at)
        seconds = min(terms.seconds, limit.seconds)
        tag = f"{self._name}.{token}.{delivery.number}"
        delivery.about, delivery.expiry = terms.about, now + seconds
        delivery.deliveries = self._counts.count(name, delivery.headers, redelivered=again)
        delivery.losses = self._losses.delivered(
            tag,
            name,
            again=again,
            waits=terms.waits,
            deliveries=delivery.deliveries,
            worker=terms.about.get("worker"),
            token=token,
            since=at,
        )
        with self._lock:
            self._deliveries[tag] = delivery
        return Claim(
            tag=tag,
            token=token,
            queue=limit.queue,
            deliveries=delivery.deliveries,
            losses=delivery.losses,
            asked_at=now,
            seconds=seconds,
            limit=limit.seconds,
        )

    def extend(self, renewals: Sequence[Renewal], *, timeout: float = 0.0) -> list[Answer]:
        """Move the expiries of leases that the broker confirms: one question for each channel."""
        now = self._clock.now()
        channels = self._open_channels(renewals)
        for connection in {id(each.connection): each.connection for each in channels}.values():
            self._beat(connection, now)
        confirmed = _confirmed(channels, timeout)
        with self._lock:
            return [self._extend(each, now, channels, confirmed) for each in renewals]

    def begin(self, tags: Sequence[str]) -> list[Answer]:
        self._losses.begin(tags)
        return [Answer.HELD] * len(tags)

    def ended(self, tags: Sequence[str]) -> None:
        self._losses.ended(tags)

    def complete(self, tags: Sequence[str]) -> list[Answer]:
        return self._settle(tags, Delivery.acknowledge)

    def drop(self, tags: Sequence[str]) -> list[Answer]:
        return self._settle(tags, Delivery.drop)

    def requeue(
        self,
        tags: Sequence[str],
        *,
        orderly: bool = True,
        front: bool = True,
        why: Mapping[str, object] | None = None,
    ) -> list[Answer]:
        """Requeue messages. RabbitMQ puts them at their former place if it can.

        A message that has used up its deliveries by orderly returns is published again instead.
        """
        del front
        # Before they go back: otherwise a backlogged holder would receive them again.
        for channel in {
            delivery.channel for tag in tags if (delivery := self._deliveries.get(tag))
        }:
            channel.stop_if_backlogged()
        self._losses.returned(tags, why, orderly=orderly)
        last = {tag for tag in tags if orderly and self._is_last(tag)}
        copied = self._send_again(last) if last else {}
        return [
            copied[tag]
            if tag in last
            else self._settle([tag], lambda delivery: delivery.requeue(orderly=orderly))[0]
            for tag in tags
        ]

    def reap(self, *, limit: int) -> list[Reaped]:
        """Return expired messages of this process that their holder did not return."""
        back = []
        for each in self.overdue(limit=limit):
            waits = self._losses.waits(each.tag)
            if not waits:
                self._losses.lost(each.tag, reason="expired")
            if self.requeue([each.tag], orderly=waits) == [Answer.HELD]:
                back.append(each)
        return back

    def overdue(self, *, limit: int) -> list[Reaped]:
        with self._lock:
            return self._late(limit)

    def forget(self, channel: Any) -> list[str]:
        """Drop the deliveries of a channel that is closing, and return their tags."""
        with self._lock:
            tags = [
                tag for tag, delivery in self._deliveries.items() if delivery.channel is channel
            ]
            for tag in tags:
                del self._deliveries[tag]
        return tags

    def dead_letter(self, tag: str, queue: str, about: Mapping[str, str] | None = None) -> Answer:
        """Leave a message to its queue's dead-letter exchange, if it has one.

        Otherwise copy it to a dead-letter queue, and acknowledge it after RabbitMQ's confirmation.
        """
        delivery = self._deliveries.get(tag)
        if delivery is None or delivery.channel.connection is None:
            return Answer.LOST
        if delivery.is_dead_lettered:
            return self.drop([tag])[0]
        facts = {**self._facts(tag, delivery), "about": dict(about or {})}
        try:
            with self._dial() as connection:
                dead.copy(connection, delivery.raw, queue, facts)
        except (AMQPError, OperationalError, OSError) as exc:
            logger.warning("message not copied to dead-letter queue %s: %s", queue, exc)
            return Answer.UNKNOWN
        return self.complete([tag])[0]

    def dead_letters(self) -> AmqpDeadLetters:
        """Return the dead-letter queues; letters that were read are kept until :meth:`close`."""
        return self._letters

    def close(self) -> None:
        """Close the driver's own connections; those of the leased channels are kombu's."""
        self._letters.close()

    def send_again(self, raws: Sequence[tuple[Any, str]]) -> int:
        """Publish copies of messages in turn, until one fails; return how many were published."""
        sent = 0
        try:
            with self._dial() as connection:
                for raw, queue in raws:
                    dead.send_again(connection, raw, queue)
                    sent += 1
        except (AMQPError, OperationalError, OSError) as exc:
            logger.warning("messages not returned to their queues: %s", exc)
        return sent

    def _is_last(self, tag: str) -> bool:
        delivery = self._deliveries.get(tag)
        return delivery is not None and delivery.is_last

    def _send_again(self, tags: Iterable[str]) -> dict[str, Answer]:
        """Publish copies, then acknowledge the messages."""
        deliveries = {tag: delivery for tag in tags if (delivery := self._deliveries.get(tag))}
        due = [delivery for delivery in deliveries.values() if not delivery.is_copied]
        for delivery in due[: self.send_again([(each.raw, each.queue) for each in due])]:
            delivery.is_copied = True
        answers = dict.fromkeys(tags, Answer.LOST)
        for tag, delivery in deliveries.items():
            answers[tag] = self.complete([tag])[0] if delivery.is_copied else Answer.UNKNOWN
        return answers

    def _facts(self, tag: str, delivery: Delivery) -> dict[str, Any]:
        room = dead.room(delivery.raw, delivery.channel.connection.frame_max)
        return {
            "queue": delivery.queue,
            "deliveries": delivery.deliveries,
            "losses": delivery.losses,
            "at": self._clock.wall().timestamp(),
            "history": self._losses.history(tag, room),
        }

    def _late(self, limit: int) -> list[Reaped]:
        """Return the messages that expired before the grace period; the caller holds the lock."""
        now = self._clock.now()
        late = [
            (tag, delivery)
            for tag, delivery in self._deliveries.items()
            if now >= delivery.expiry + GRACE
        ]
        return [
            Reaped(tag=tag, queue=delivery.queue, late=now - delivery.expiry, about=delivery.about)
            for tag, delivery in late[:limit]
        ]

    def _open_channels(self, renewals: Sequence[Renewal]) -> set[Any]:
        """Return the channels of the renewed leases, if their connections are open."""
        deliveries = (self._deliveries.get(each.tag) for each in renewals)
        channels = {delivery.channel for delivery in deliveries if delivery is not None}
        return {each for each in channels if each.connection and not is_cut(each.connection)}

    def _extend(
        self, renewal: Renewal, now: float, channels: set[Any], confirmed: set[Any]
    ) -> Answer:
        delivery = self._deliveries.get(renewal.tag)
        if delivery is None or delivery.channel not in channels:
            return Answer.LOST
        if now >= delivery.expiry and not renewal.late:
            return Answer.LOST
        if delivery.channel not in confirmed:
            return Answer.UNKNOWN
        delivery.expiry = now + renewal.seconds
        return Answer.HELD

    def _settle(self, tags: Sequence[str], settle: Callable[[Delivery], bool]) -> list[Answer]:
        answers = []
        for tag in tags:
            with self._lock:
                delivery = self._deliveries.pop(tag, None)
            done = delivery is not None and settle(delivery)
            answers.append(Answer.HELD if done else Answer.LOST)
        return answers

    def _beat(self, connection: Any, now: float) -> None:
        """Send a heartbeat on a connection whose main loop may stand still."""
        interval = (connection.heartbeat or 0) / BEATS
        if not interval or now - self._beaten.get(id(connection), 0.0) < interval:
            return
        self._beaten = {id(connection): now}
        with suppress(AMQPError, OSError):  # the thread that reads the connection finds out
            connection.send_heartbeat()


def _confirmed(channels: Iterable[Any], timeout: float) -> set[Any]:
    """Return the channels on which the broker answers; channels without a reader count as such."""
    confirmed = set()
    by_reader: dict[Reader | None, list[Any]] = {}
    for each in channels:
        by_reader.setdefault(reader_of(each.connection), []).append(each)
    for reader, of_it in by_reader.items():
        confirmed |= set(of_it) if reader is None else reader.confirm(of_it, timeout)
    return confirmed


def _nowhere() -> Any:
    raise OSError("the broker cannot be reached")
