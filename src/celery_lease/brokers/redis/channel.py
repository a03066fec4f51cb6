"""Kombu's record of a channel's unacknowledged messages, with leases for leased tasks.

Messages without a lease are recorded as in kombu, by the script that takes them or by another one.
A :class:`~celery_lease.core.delivery.Holder` decides about a leased message; this class only passes
kombu's calls to it.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: ``Channel.qos``,
``QoS._delivered/_dirty``, ``Message._raw``, and that a ``queue.Empty`` raised while a
message is delivered means "nothing was received".
"""

from __future__ import annotations

from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Any

from kombu.transport import redis as kombu_redis
from kombu.utils.json import dumps

from celery_lease.brokers.qos import LeasingChannel, SettlingQoS, when_leasing
from celery_lease.brokers.redis.delivery import Delivery
from celery_lease.brokers.redis.receive import Receiver, check_tag
from celery_lease.core.delivery import Answer, Claim, Holder, Terms
from celery_lease.core.keys import KeyAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.brokers.redis.driver import RedisDriver
    from celery_lease.core.clock import Clock

#: Longest wait for the reply to a request for a message, in seconds; usually it is there at once.
LAST_REPLY = 2.0


class LeaseQoS(SettlingQoS, kombu_redis.QoS):
    """Claims leased messages when they are received.

    Kombu's rules for ``_delivered`` and ``_dirty``, which several threads touch, are kept.
    """

    driver: RedisDriver
    receiver: Receiver

    @when_leasing
    def may_take(self, window: Callable[[], bool]) -> bool:
        """Return whether another message may be taken, or the reply to the last request read.

        A reply is always read: its message would wait for a reaper, and kombu 5.5 looks at an
        unread reply again and again. A channel that may take nothing gives up its roles.
        """
        if self.channel._in_poll:  # type: ignore[attr-defined]  # noqa: SLF001
            return True
        may = bool(super().may_take(window))
        if not may:
            self.receiver.step_back()
        return may

    @when_leasing
    def append(self, message: Any, delivery_tag: str) -> None:
        """Record a delivery, under a lease if the holder has terms for it.

        Raises:
            queue.Empty: The record was not confirmed. The message goes back to its queue, and is
                not delivered here; or it is parked.
            ValueError, TypeError: Its delivery tag is unusable.
        """
        check_tag(delivery_tag)
        if self.receiver.is_broadcast:
            # It has no list to return to: kept in memory, as long as this worker lives.
            super(kombu_redis.QoS, self).append(message, delivery_tag)
            return
        if self.receiver.tag and not self._has_room():
            # Since the request the window has shrunk, as after an ETA, or the worker has begun to
            # drain or to stop.
            self.receiver.return_it(message)
            raise Empty
        terms = self.holder.terms(message)
        if terms is None:
            self._append_plain(message, delivery_tag)
            return
        claim = self.receiver.claim(message, terms) or self._claim(message, terms)
        self.receiver.recorded()
        message.delivery_tag = claim.tag
        self.leased.add(claim.tag)
        super(kombu_redis.QoS, self).append(message, claim.tag)
        self.holder.claimed(claim, message)

    def _claim(self, message: Any, terms: Terms) -> Claim:
        delivery = Delivery.of(message, *self.receiver.origin(message))
        claim = self.driver.claim(delivery, terms, self.clock.now())
        if claim is None:
            self.holder.unclaimed(delivery)
            raise Empty
        if isinstance(claim, KeyAnswer):
            self.receiver.recorded()
            self.holder.parked(message, delivery.queue, claim.by)
            raise Empty
        self.receiver.learn(terms)
        return claim

    def _has_room(self) -> bool:
        return not self.holder.backlogged and kombu_redis.QoS.can_consume(self)

    def _append_plain(self, message: Any, delivery_tag: str) -> None:
        arrival = self.receiver.tag
        if not arrival:
            super().append(message, delivery_tag)
            return
        if self.receiver.is_plain:
            message.delivery_tag = delivery_tag = arrival
        else:
            info = message.delivery_info
            text = dumps([message._raw, info["exchange"], info["routing_key"]])  # noqa: SLF001
            if self.driver.adopt(arrival, delivery_tag, text) is not Answer.HELD:
                raise Empty
            self.receiver.learn_plain(self.holder.plain_task(message))
        self.receiver.recorded()
        super(kombu_redis.QoS, self).append(message, delivery_tag)

    @when_leasing
    def restore_unacked(self, client: Any = None) -> None:
        self.return_idle()
        if self._delivered:  # kombu would connect for nothing, perhaps to a broker that is gone
            super().restore_unacked(client)

    @when_leasing
    def restore_visible(self, *_: Any, **__: Any) -> None:
        """Do nothing: the reaper returns kombu's unacknowledged messages, and sooner.

        It needs no mutex: a mutex of kombu without an expiry ends all of kombu's sweeps for good.
        """


class Leasing(LeasingChannel):
    """Requests messages so that none ever exists in the memory of one process alone."""

    QoS = LeaseQoS

    def begin_leases(self: Any, driver: Any, holder: Holder, clock: Clock) -> None:
        """Lease messages of the server that this channel uses."""
        driver.follow(self)
        self.qos.receiver = Receiver(self, driver, clock)
        super().begin_leases(driver, holder, clock)

    @when_leasing
    def _update_queue_cycle(self: Any) -> None:
        """Read other queues from now on; kombu calls it when a consumer was added or cancelled."""
        super()._update_queue_cycle()  # type: ignore[misc]
        self.qos.receiver.change_queues()

    @when_leasing
    def close(self: Any) -> None:
        """End a wait at the server first: kombu would wait for the reply."""
        self.qos.receiver.close()
        try:
            super().close()  # type: ignore[misc]
        finally:
            self.qos.receiver.return_unheard()


def end_receiving(channel: Any) -> None:
    """Read the reply to a request under way: otherwise its message would wait for a reaper.

    Kombu does so when it closes the channel, which in a stopping worker is after its last task. The
    server answers at once; one that does not is left to kombu.
    """
    if channel.connection is None:  # closed
        return
    connection = getattr(channel.client, "connection", None)
    receiver = channel.qos.receiver
    if channel._in_poll and connection is not None:  # noqa: SLF001
        receiver.hurry()
        with suppress(Empty, OSError, *channel.connection_errors):
            if connection.can_read(timeout=LAST_REPLY):
                channel._brpop_read()  # noqa: SLF001
    receiver.step_back()
