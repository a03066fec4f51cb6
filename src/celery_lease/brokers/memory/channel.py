"""A kombu in-memory channel whose messages are leased.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: ``Channel._get`` (its result is delivered next,
by the same thread), ``Message._raw``.
"""

from __future__ import annotations

from queue import Empty
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from celery_lease.brokers.qos import LeasingChannel, SettlingQoS
from celery_lease.core.keys import KeyAnswer

if TYPE_CHECKING:
    from celery_lease.brokers.memory.driver import MemoryDriver


class LeaseQoS(SettlingQoS, virtual.QoS):
    """Claims leased messages on arrival."""

    driver: MemoryDriver
    queue: str  # of the message that is delivered next

    def append(self, message: Any, delivery_tag: str) -> None:
        terms = self.holder.terms(message)
        if terms is None:
            super().append(message, delivery_tag)
            return
        claim = self.driver.claim(message, self.queue, terms)
        if isinstance(claim, KeyAnswer):
            self.holder.parked(message, self.queue, claim.by)
            raise Empty
        message.delivery_tag = claim.tag
        self.leased.add(claim.tag)
        super().append(message, claim.tag)
        self.holder.claimed(claim, message)


class Leasing(LeasingChannel):
    """Records the queue of each message."""

    QoS = LeaseQoS

    def _get(self: Any, queue: str, timeout: float | None = None) -> Any:
        self.qos.queue = queue
        return super()._get(queue, timeout)  # type: ignore[misc]
