"""A kombu in-memory channel whose messages are leased.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: ``Channel._get`` (what it returns is delivered
next, by the same thread), ``Message._raw``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from celery_lease.brokers.settling import SettlingQoS, mix_in

if TYPE_CHECKING:
    from celery_lease.brokers.memory.driver import MemoryDriver
    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Holder


class LeaseQoS(SettlingQoS, virtual.QoS):
    """Claims leased messages on arrival."""

    driver: MemoryDriver
    queue: str  # that the message at hand is from

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

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Return what nobody will work on any more; the channel is being closed."""
        self.return_idle()
        super().restore_unacked_once(stderr)


class Leasing:
    """What a leasing channel does differently; mixed into the class of a live one."""

    def _get(self: Any, queue: str, timeout: float | None = None) -> Any:
        self.qos.queue = queue
        return super()._get(queue, timeout)  # type: ignore[misc]


def lease_messages(channel: Any, driver: MemoryDriver, holder: Holder, clock: Clock) -> None:
    """Make a live kombu *channel* lease the messages that *holder* has terms for.

    Channel and ``QoS`` object stay the same ones and only change their class. To be called before
    consuming starts.
    """
    del clock  # a claim counts from the driver's
    qos = channel.qos
    qos.__class__ = LeaseQoS
    qos.driver, qos.holder, qos.leased = driver, holder, set()
    mix_in(Leasing, channel)
