"""A kombu AMQP channel whose messages are leased.

Uses of kombu and py-amqp internals, as read in kombu 5.5.4 and 5.7.0 and amqp 5.3.1 and 5.4.2:
that a consumer's messages pass ``Channel.message_to_python``, that a consumer's callback is a
method of its :class:`kombu.Consumer`, ``Channel.collect``, ``Channel._do_revive``,
``Channel.no_ack_consumers``.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from amqp import spec

from celery_lease.brokers.amqp.delivery import CLOSED
from celery_lease.brokers.amqp.driver import Arrival
from celery_lease.brokers.amqp.frames import guard
from celery_lease.brokers.amqp.limits import Limit, consumer_timeout
from celery_lease.brokers.settling import mix_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery_lease.brokers.amqp.driver import AmqpDriver
    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Holder

#: Argument of a queue that has a dead-letter exchange.
DEAD_LETTERS = "x-dead-letter-exchange"


class Leasing:
    """What a leasing channel does differently; mixed into the class of a live one.

    Touched by the consuming thread, and in what settles messages by whichever thread does so. Tags
    of leased messages are text, all others are numbers.
    """

    lease_driver: AmqpDriver
    lease_holder: Holder
    lease_clock: Clock
    limits: dict[str, Limit]  # of all queues that were consumed, by consumer tag
    consumers: dict[str, Callable[[], Any]]  # how to consume once more, by consumer tag
    dead_lettered: set[str]  # consumer tags; their queues have a dead-letter exchange
    stopped: bool  # the broker was asked to deliver nothing more

    def basic_consume(
        self: Any, queue: str = "", *args: Any, callback: Any = None, **options: Any
    ) -> Any:
        """Consume, and remember from where; for a holder that takes nothing more, only that."""
        arguments = (options.get("arguments") or {}, *_queue_arguments(callback, queue))
        timeout = consumer_timeout(self.connection.client.transport_options or {}, arguments)
        is_dead_lettered = any(DEAD_LETTERS in each for each in arguments)
        consume = partial(super().basic_consume, queue, *args, callback=callback, **options)  # type: ignore[misc]
        # Before the call: while it waits for its answer, messages may come.
        if tag := options.get("consumer_tag"):
            self.limits[tag], self.consumers[tag] = Limit(queue, timeout), consume
            (self.dead_lettered.add if is_dead_lettered else self.dead_lettered.discard)(tag)
            if self.lease_holder.backlogged:
                self.stopped = True
                return tag
        return consume()

    def basic_cancel(self: Any, consumer_tag: str, **options: Any) -> Any:
        """Cancel for good."""
        self.consumers.pop(consumer_tag, None)
        return super().basic_cancel(consumer_tag, **options)  # type: ignore[misc]

    def message_to_python(self: Any, raw: Any) -> Any:
        """Make kombu's message: under a lease if the holder names terms for it."""
        message = super().message_to_python(raw)  # type: ignore[misc]
        consumer = message.delivery_info.get("consumer_tag")
        if consumer in self.limits and consumer not in self.no_ack_consumers:
            self._lease(message, raw, consumer)
        return message

    def basic_ack(self: Any, delivery_tag: Any, multiple: bool = False, **options: Any) -> Any:
        """Acknowledge; what is leased by way of its holder, the rest as kombu does."""
        if isinstance(delivery_tag, str):
            return self.lease_holder.complete(delivery_tag)
        return super().basic_ack(delivery_tag, multiple, **options)  # type: ignore[misc]

    def basic_reject(self: Any, delivery_tag: Any, requeue: bool, **options: Any) -> Any:
        """Reject; what is leased by way of its holder, the rest as kombu does."""
        if not isinstance(delivery_tag, str):
            return super().basic_reject(delivery_tag, requeue, **options)  # type: ignore[misc]
        if requeue:
            return self.lease_holder.hand_back([delivery_tag], front=False)
        return self.lease_holder.drop(delivery_tag)

    def stop_if_backlogged(self: Any) -> None:
        """Have the broker deliver nothing more to a holder that takes nothing more.

        One frame for each consumer and no answer, so that any thread can do it. What is on its
        way already arrives, and goes back when it is read.
        """
        if self.stopped or not self.lease_holder.backlogged:
            return
        self.stopped = True
        with suppress(OSError, *CLOSED):  # closed: the broker has all of them
            for tag in list(self.consumers):
                self.send_method(spec.Basic.Cancel, "sb", (tag, True))

    def go_on_unless_backlogged(self: Any) -> None:
        """Consume again, for a holder that takes messages again. In the consuming thread only."""
        if not self.stopped or self.lease_holder.backlogged:
            return
        self.stopped = False
        for consume in list(self.consumers.values()):
            consume()

    def collect(self: Any) -> None:
        """Close for good: the broker gives what is unacknowledged to others."""
        with self._losing():
            super().collect()  # type: ignore[misc]

    def _do_revive(self: Any) -> None:
        """Open anew after the broker closed it: numbers start again, for other messages."""
        with self._losing():
            super()._do_revive()  # type: ignore[misc]

    @contextmanager
    def _losing(self: Any) -> Iterator[None]:
        """Give up the deliveries of a channel before it closes, and tell their holder after."""
        lost = self.lease_driver.forget(self)
        try:
            yield
        finally:
            if lost:
                self.lease_holder.lost(lost)

    def _lease(self: Any, message: Any, raw: Any, consumer: str) -> None:
        limit = self.limits[consumer]
        terms = self.lease_holder.terms(message)
        if terms is None:
            return
        arrival = Arrival(
            channel=self,
            number=message.delivery_tag,
            queue=limit.queue,
            limit=limit,
            message_id=message.properties.get("correlation_id") or "",
            headers=message.headers,
            redelivered=bool(message.delivery_info.get("redelivered")),
            raw=raw,
            is_dead_lettered=consumer in self.dead_lettered,
        )
        claim = self.lease_driver.claim(arrival, terms, self.lease_clock.now())
        message.delivery_tag = claim.tag
        self.lease_holder.claimed(claim, message)


def _queue_arguments(callback: Any, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the declared arguments of a queue, if its consumer knows them."""
    for queue in getattr(getattr(callback, "__self__", None), "queues", ()):
        if queue.name == name and queue.queue_arguments:
            yield queue.queue_arguments


def lease_messages(channel: Any, driver: AmqpDriver, holder: Holder, clock: Clock) -> None:
    """Make a live kombu *channel* lease the messages that *holder* has terms for.

    It stays the same object and only changes its class. To be called before consuming starts.
    """
    guard(channel.connection)
    mix_in(Leasing, channel)
    channel.lease_driver, channel.lease_holder, channel.lease_clock = driver, holder, clock
    channel.limits, channel.consumers, channel.stopped = {}, {}, False
    channel.dead_lettered = set()


def turn(channel: Any) -> None:
    """Have the broker deliver, or not, as the holder wants."""
    if channel.connection is not None and isinstance(channel, Leasing):
        channel.stop_if_backlogged()
        channel.go_on_unless_backlogged()
