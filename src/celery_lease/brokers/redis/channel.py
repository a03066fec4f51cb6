"""Kombu's record of unacknowledged messages on one channel, with leases for those that want one.

Messages without a lease are recorded as kombu does it. What is done with a leased one is
decided by a :class:`~celery_lease.core.delivery.Holder`; this class only tells it what kombu asks.

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

from celery_lease.brokers.redis.arrivals import Arrivals, check_tag
from celery_lease.brokers.redis.attempt import Attempt
from celery_lease.brokers.redis.refusals import will_pass
from celery_lease.brokers.settling import SettlingQoS
from celery_lease.core.delivery import Answer

__all__ = ["LeaseQoS", "end_receiving", "lease_messages", "will_pass"]

if TYPE_CHECKING:
    from celery_lease.brokers.redis.driver import RedisDriver
    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Holder

#: Longest wait for the reply to a request for a message, in seconds; the server has it in a moment.
LAST_REPLY = 2.0


class LeaseQoS(SettlingQoS, kombu_redis.QoS):
    """Claims leased messages on arrival.

    Kombu's own rule for ``_delivered`` and ``_dirty``, which several threads touch, is kept.
    """

    driver: RedisDriver
    clock: Clock
    arrivals: Arrivals

    def can_consume(self) -> bool:
        """Tell whether another message may be taken, or the reply read to the last request.

        That is read in any case: the message in it would wait for a reaper, and kombu 5.5 looks at
        a reply that it may not read again and again.
        """
        return bool(self.channel._in_poll) or (  # type: ignore[attr-defined]  # noqa: SLF001
            not self.holder.backlogged and super().can_consume()
        )

    def append(self, message: Any, delivery_tag: str) -> None:
        """Record a delivery: under a lease if the holder names terms for it.

        Raises:
            queue.Empty: The record was not confirmed. The message is on its way back to its queue
                and nobody here will see it.
            ValueError, TypeError: Its delivery tag is none.
        """
        check_tag(delivery_tag)
        if self.arrivals.is_broadcast:
            # Of no list, so it has none to return to: kept in memory, as long as this worker lives.
            super(kombu_redis.QoS, self).append(message, delivery_tag)
            return
        if self.arrivals.tag and not super().can_consume():
            # The window shrank while it was asked for, as after an ETA. If this is not answered, a
            # reaper returns it.
            self.driver.hand_back([self.arrivals.tag])
            raise Empty
        terms = self.holder.terms(message)
        if terms is None:
            self._append_plain(message, delivery_tag)
            return
        attempt = Attempt.of(message, *self.arrivals.origin(message))
        claim = self.driver.claim(attempt, terms, self.clock.now())
        if claim is None:
            self.holder.unclaimed(attempt)
            raise Empty
        self.arrivals.recorded()
        message.delivery_tag = claim.tag
        self.leased.add(claim.tag)
        super(kombu_redis.QoS, self).append(message, claim.tag)
        self.holder.claimed(claim, message)

    def _append_plain(self, message: Any, delivery_tag: str) -> None:
        arrival = self.arrivals.tag
        if not arrival:
            super().append(message, delivery_tag)
            return
        info = message.delivery_info
        text = dumps([message._raw, info["exchange"], info["routing_key"]])  # noqa: SLF001
        if self.driver.adopt(arrival, delivery_tag, text) is not Answer.HELD:
            raise Empty
        self.arrivals.recorded()
        super(kombu_redis.QoS, self).append(message, delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        """Return what nobody will work on any more; the channel is being closed."""
        self.return_idle()
        if self._delivered:  # kombu would connect for nothing, and to a broker that may be gone
            super().restore_unacked(client)

    def restore_visible(self, *_: Any, **__: Any) -> None:
        """Leave the sweep to the reaper, which returns what kombu would, and sooner.

        It has no mutex: kombu's, left without expiry, ends all of kombu's sweeps for good.
        """


def lease_messages(channel: Any, driver: RedisDriver, holder: Holder, clock: Clock) -> LeaseQoS:
    """Make a live kombu *channel* lease the messages that *holder* has terms for.

    The channel's ``QoS`` object stays the same one, with its counts, its prefetch limit and what
    others have put on it, and only changes its class. To be called before consuming starts.
    """
    driver.follow(channel)
    qos = channel.qos
    qos.__class__ = LeaseQoS
    qos.driver, qos.holder, qos.clock = driver, holder, clock
    qos.arrivals, qos.leased = Arrivals(channel, driver), set()
    return qos  # type: ignore[no-any-return]


def end_receiving(channel: Any) -> None:
    """Read the reply to a request under way: the message in it would have to wait for a reaper.

    Kombu does so when it closes the channel, which in a stopping worker is after its last task.
    The server answers in a moment; one that does not is left to kombu.
    """
    connection = getattr(channel.client, "connection", None)
    if not channel._in_poll or connection is None:  # noqa: SLF001
        return
    with suppress(Empty, OSError, *channel.connection_errors):
        if connection.can_read(timeout=LAST_REPLY):
            channel._brpop_read()  # noqa: SLF001
