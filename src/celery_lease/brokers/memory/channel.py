"""A kombu in-memory channel whose messages are leased.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: ``Channel._get`` (what it returns is delivered
next, by the same thread), ``Message._raw``, ``QoS._delivered/_quick_ack``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Callable

    from celery_lease.brokers.memory.driver import MemoryDriver
    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Holder


class LeaseQoS(virtual.QoS):
    """Claims leased messages on arrival, and routes their acks and rejects to the holder."""

    driver: MemoryDriver
    holder: Holder
    queue: str  # that the message at hand is from
    leased: set[str]  # tags, this channel's
    _delivered: OrderedDict[str, Any]
    _quick_ack: Callable[[str], None]

    def can_consume(self) -> bool:
        """Tell whether another message may be taken."""
        return not self.holder.backlogged and bool(super().can_consume())

    def append(self, message: Any, delivery_tag: str) -> None:
        """Record a delivery: under a lease if the holder names terms for it."""
        terms = self.holder.terms(message)
        if terms is None:
            super().append(message, delivery_tag)
            return
        claim = self.driver.claim(message, self.queue, terms)
        message.delivery_tag = claim.tag
        self.leased.add(claim.tag)
        super().append(message, claim.tag)
        self.holder.claimed(claim, message)

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message and free its place in the prefetch window."""
        if self._release(delivery_tag):
            self.holder.complete(delivery_tag)
        else:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop a message, or send it to the back of the line as kombu does."""
        if not self._release(delivery_tag):
            super().reject(delivery_tag, requeue=requeue)
        elif requeue:
            self.holder.hand_back([delivery_tag], front=False)
        else:
            self.holder.complete(delivery_tag)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Return what nobody will work on any more; the channel is being closed."""
        leased = [tag for tag in self._delivered if tag in self.leased]
        ended = [tag for tag in leased if not self.holder.keeps(tag) and self._release(tag)]
        # Newest first, so that the oldest ends up at the front of the line.
        self.holder.hand_back(ended[::-1], front=True)
        super().restore_unacked_once(stderr)

    def _release(self, delivery_tag: str) -> bool:
        """Free the place of a leased message; False if it is not one of this channel's."""
        if delivery_tag not in self.leased:
            return False
        self.leased.discard(delivery_tag)
        self._quick_ack(delivery_tag)
        return True


class Leasing:
    """What a leasing channel does differently; mixed into the class of a live one."""

    def _get(self: Any, queue: str, timeout: float | None = None) -> Any:
        self.qos.queue = queue
        return super()._get(queue, timeout)  # type: ignore[misc]


@cache
def _leasing(channel_class: type) -> type:
    return type("LeasingChannel", (Leasing, channel_class), {})


def lease_messages(channel: Any, driver: MemoryDriver, holder: Holder, clock: Clock) -> None:
    """Make a live kombu *channel* lease the messages that *holder* has terms for.

    Channel and ``QoS`` object stay the same ones and only change their class. To be called before
    consuming starts.
    """
    del clock  # a claim counts from the driver's
    qos = channel.qos
    qos.__class__ = LeaseQoS
    qos.driver, qos.holder, qos.leased = driver, holder, set()
    channel.__class__ = _leasing(type(channel))  # type: ignore[arg-type]
