"""A kombu AMQP channel whose messages are leased.

Uses of kombu and py-amqp internals, as read in kombu 5.5.4 and 5.7.0 and amqp 5.3.1 and 5.4.2:
that a consumer's messages pass ``Channel.message_to_python``, that a consumer's callback is a
method of its :class:`kombu.Consumer`, ``Channel.collect``, ``Channel._do_revive``,
``Channel.no_ack_consumers``, ``Channel._on_basic_cancel``.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from amqp import spec
from amqp.exceptions import PreconditionFailed

from celery_lease.brokers.amqp.delivery import CLOSED, Delivery
from celery_lease.brokers.amqp.frames import guard, spoil
from celery_lease.brokers.amqp.limits import (
    Limit,
    consumer_cancelled,
    consumer_timeout,
    learn,
    spends_budget,
    version_of,
)
from celery_lease.brokers.amqp.plain import PlainMessage, PlainMessages
from celery_lease.brokers.amqp.reader import attach, reader_of
from celery_lease.brokers.qos import NOBODY, LeasingChannel, when_leasing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery_lease.brokers.amqp.driver import AmqpDriver
    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Holder

logger = logging.getLogger(__name__)

#: Number of plain messages that are logged when the broker has closed the channel.
OLDEST = 3

#: Argument of a queue that has a dead-letter exchange.
DEAD_LETTERS = "x-dead-letter-exchange"


class Leasing(LeasingChannel):
    """Makes a channel lease its messages.

    Touched by the consuming thread; the methods that settle a message by any thread. Tags of
    leased messages are strings, all others are numbers.
    """

    lease_driver: AmqpDriver
    limits: dict[str, Limit]  # of each consumed queue, by consumer tag
    consumers: dict[str, Callable[[], Any]]  # the calls that consume again, by consumer tag
    arguments: dict[str, tuple[Mapping[str, Any], ...]]  # of queues and consumers, by consumer tag
    dead_lettered: set[str]  # consumer tags; their queues have a dead-letter exchange
    plain: PlainMessages  # unsettled messages without a lease
    stopped = False  # the broker was asked to stop its deliveries

    def begin_leases(self: Any, driver: Any, holder: Holder, clock: Clock) -> None:
        guard(self.connection)
        attach(self.connection, clock)
        self.lease_driver, self.lease_clock = driver, clock
        self.limits, self.consumers, self.arguments = {}, {}, {}
        self.dead_lettered, self.plain = set(), PlainMessages()
        self.lease_holder = holder  # last: from here on other threads tend the channel

    @when_leasing
    def basic_consume(
        self: Any, queue: str = "", *args: Any, callback: Any = None, **options: Any
    ) -> Any:
        """Consume, and store the call; for a backlogged holder only store it."""
        arguments = (options.get("arguments") or {}, *_queue_arguments(callback, queue))
        known = self.connection.client.transport_options or {}
        timeout = consumer_timeout(known, arguments, version_of(self))
        is_dead_lettered = any(DEAD_LETTERS in each for each in arguments)
        consume = partial(super().basic_consume, queue, *args, callback=callback, **options)  # type: ignore[misc]
        # Before the call: messages may arrive while it waits for its answer.
        if tag := options.get("consumer_tag"):
            self.limits[tag], self.consumers[tag] = Limit(queue, timeout), consume
            self.arguments[tag] = arguments
            (self.dead_lettered.add if is_dead_lettered else self.dead_lettered.discard)(tag)
            if self.lease_holder.backlogged:
                self.stopped = True
                return tag
        return consume()

    @when_leasing
    def basic_cancel(self: Any, consumer_tag: str, **options: Any) -> Any:
        """Cancel a consumer for good."""
        self.consumers.pop(consumer_tag, None)
        return super().basic_cancel(consumer_tag, **options)  # type: ignore[misc]

    def _on_basic_cancel(self: Any, consumer_tag: str) -> None:
        """Raise ConsumerCancelled, as py-amqp does: the worker connects anew."""
        if self.lease_holder is not NOBODY and consumer_tag in self.limits:
            consumer_cancelled(self.limits[consumer_tag].queue)
            self.name_oldest()
        super()._on_basic_cancel(consumer_tag)  # type: ignore[misc]

    @when_leasing
    def message_to_python(self: Any, raw: Any) -> Any:
        """Create kombu's message, under a lease if the holder has terms for it."""
        message = super().message_to_python(raw)  # type: ignore[misc]
        consumer = message.delivery_info.get("consumer_tag")
        if consumer in self.limits and consumer not in self.no_ack_consumers:
            self._lease(message, raw, consumer)
        return message

    @when_leasing
    def basic_ack(self: Any, delivery_tag: Any, multiple: bool = False, **options: Any) -> Any:
        if isinstance(delivery_tag, str):
            return self.lease_holder.complete(delivery_tag)
        if not self.plain.settles(delivery_tag):
            return None
        return super().basic_ack(delivery_tag, multiple, **options)  # type: ignore[misc]

    @when_leasing
    def basic_reject(self: Any, delivery_tag: Any, requeue: bool, **options: Any) -> Any:
        if not isinstance(delivery_tag, str):
            if not self.plain.settles(delivery_tag):
                return None
            return super().basic_reject(delivery_tag, requeue, **options)  # type: ignore[misc]
        if requeue:
            return self.lease_holder.requeue([delivery_tag], front=False)
        return self.lease_holder.drop(delivery_tag)

    def stop_if_backlogged(self: Any) -> None:
        """Stop the broker's deliveries if the holder is backlogged.

        One frame for each consumer and no answer, so any thread can do it. Deliveries that are on
        their way still arrive, and go back when they are read.
        """
        if self.stopped or not self.lease_holder.backlogged:
            return
        self.stopped = True
        with suppress(OSError, *CLOSED):  # closed: the broker has all messages
            for tag in list(self.consumers):
                self.send_method(spec.Basic.Cancel, "sb", (tag, True))

    def go_on_unless_backlogged(self: Any) -> None:
        """Consume again if the holder is no longer backlogged. In the consuming thread only."""
        if not self.stopped or self.lease_holder.backlogged:
            return
        self.stopped = False
        for consume in list(self.consumers.values()):
            consume()

    def return_unseen(self: Any) -> None:
        """Return messages that were read ahead, if the holder is backlogged. From any thread."""
        if not self.lease_holder.backlogged:
            return
        self.stop_if_backlogged()

        def ours(consumer: str) -> bool:
            return consumer in self.limits and consumer not in self.no_ack_consumers

        reader: Any = reader_of(self.connection)
        for number, consumer, raw in reader.take_deliveries(self.channel_id, ours):
            headers = raw.properties.get("application_headers") or {}
            queue, sent = self.limits[consumer].queue, False
            if self._is_last(headers, consumer):
                sent = bool(self.lease_driver.send_again([(raw, queue)]))
            with suppress(OSError, *CLOSED):  # closed: the broker has all messages
                if sent:
                    self.send_method(spec.Basic.Ack, "Lb", (number, False))
                else:
                    self.send_method(spec.Basic.Nack, "Lbb", (number, False, True))

    def _is_last(self: Any, headers: Mapping[str, Any], consumer: str) -> bool:
        return spends_budget(headers, self.arguments[consumer], version_of(self))

    def return_overdue(self: Any) -> None:
        """Return plain messages before the broker closes the channel for them. From any thread."""
        now = self.lease_clock.now()
        for number, each in self.plain.overdue(now):
            held, limit = now - each.received_at, each.limit
            begun = self.lease_holder.outran(each.message, held, limit.queue, limit.timeout)
            with suppress(OSError, *CLOSED):  # closed: the broker has all messages
                if begun:  # a failure: it counts towards the delivery limit
                    self.send_method(spec.Basic.Reject, "Lb", (number, True))
                else:
                    self.send_method(spec.Basic.Nack, "Lbb", (number, False, True))

    def name_oldest(self: Any) -> None:
        """Log the oldest plain messages, a likely cause of what the broker closed; once."""
        now = self.lease_clock.now()
        for each in self.plain.oldest(OLDEST):
            held, limit = now - each.received_at, each.limit
            self.lease_holder.outran(each.message, held, limit.queue, 0.0)
        self.plain.clear()

    def lose_all(self: Any) -> None:
        """Drop the deliveries of a channel that the broker has closed, or no longer serves."""
        if lost := self.lease_driver.forget(self):
            self.lease_holder.lost(lost)

    @when_leasing
    def collect(self: Any) -> None:
        """Close the channel for good: the broker redelivers unacknowledged messages elsewhere."""
        with self._losing():
            super().collect()  # type: ignore[misc]

    @when_leasing
    def _do_revive(self: Any) -> None:
        """Open the channel again after the broker closed it; delivery numbers start again."""
        self.name_oldest()
        with self._losing():
            super()._do_revive()  # type: ignore[misc]

    @contextmanager
    def _losing(self: Any) -> Iterator[None]:
        """Drop the deliveries of a channel before it closes, and inform their holder after that."""
        lost = self.lease_driver.forget(self)
        self.plain.clear()
        if reader := reader_of(self.connection):
            reader.forget(self.channel_id)
        try:
            yield
        finally:
            if lost:
                self.lease_holder.lost(lost)

    def _lease(self: Any, message: Any, raw: Any, consumer: str) -> None:
        limit = self.limits[consumer]
        terms = self.lease_holder.terms(message)
        if terms is None:
            plain = PlainMessage(message, limit, self.lease_clock.now())
            self.plain.put(message.delivery_tag, plain)
            return
        delivery = Delivery(
            channel=self,
            number=message.delivery_tag,
            limit=limit,
            message_id=message.properties.get("correlation_id") or "",
            headers=message.headers,
            redelivered=bool(message.delivery_info.get("redelivered")),
            raw=raw,
            is_dead_lettered=consumer in self.dead_lettered,
            is_last=self._is_last(message.headers, consumer),
        )
        claim = self.lease_driver.claim(delivery, terms, self.lease_clock.now())
        message.delivery_tag = claim.tag
        self.lease_holder.claimed(claim, message)


def _queue_arguments(callback: Any, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the declared arguments of a queue, if its consumer knows them."""
    for queue in getattr(getattr(callback, "__self__", None), "queues", ()):
        if queue.name == name and queue.queue_arguments:
            yield queue.queue_arguments


def tend(channel: Any) -> None:
    """Do the consuming thread's urgent work while it does not read. In the keeper's thread."""
    connection = channel.connection
    reader = reader_of(connection)
    if reader is None or channel.lease_holder is NOBODY:
        return
    reader.read_ahead()
    if reader.is_silent() and not reader.has_ended:
        logger.warning("RabbitMQ has been silent for too long: the connection is closed")
        reader.has_ended = True
        spoil(connection)
    if channel.channel_id in reader.closed:  # the consuming thread may still be in a task
        channel.name_oldest()
        channel.lose_all()
    elif reader.has_ended:
        channel.lose_all()
    else:
        channel.return_overdue()
        channel.return_unseen()


def catch_up(channel: Any) -> None:
    """Handle the frames that were read ahead, for a waiting event loop. In its thread only."""
    reader = reader_of(channel.connection)
    if reader is not None:
        with suppress(TimeoutError):
            reader.catch_up()


def will_pass(exc: BaseException) -> bool:
    """Return whether the broker closed the channel for its consumer timeout: a new one works."""
    return isinstance(exc, PreconditionFailed) and learn(str(exc))


def turn(channel: Any) -> None:
    """Start or stop the broker's deliveries, as the holder's backlog requires."""
    if channel.connection is not None and isinstance(channel, Leasing):
        channel.stop_if_backlogged()
        channel.go_on_unless_backlogged()
