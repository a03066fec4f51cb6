"""Kombu's record of unacknowledged pgmq messages, with leases for those that want one.

Messages without a lease take kombu's own path, untouched. What is done with a leased one is
decided by a :class:`~celery_lease.core.delivery.Holder`; this class only tells it what kombu asks.

Uses of kombu internals, as read in 5.7.0: what ``Channel`` puts into ``delivery_info``:
``pgmq_queue`` and ``pgmq_msg_id``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from celery_lease.brokers.pgmq.driver import Arrival
from celery_lease.brokers.pgmq.fence import Delivery
from celery_lease.brokers.settling import SettlingQoS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_lease.brokers.pgmq.driver import PgmqDriver
    from celery_lease.core.delivery import Claim, Terms

logger = logging.getLogger(__name__)


class LeaseQoS(SettlingQoS, virtual.QoS):
    """Claims leased messages before they are delivered."""

    driver: PgmqDriver
    claimed: dict[tuple[str, int], Any]  # messages to be delivered, as the holder knows them
    channel: Any

    def take(self, queue: str, rows: Sequence[Any], payloads: Sequence[Any]) -> list[Any]:
        """Claim what was read from a *queue*; return the payloads that may be delivered.

        All are held from here on: a full pool of a worker without event loop makes the delivery of
        the first one wait for a free process, and that of the others with it.
        """
        arrivals: dict[int, Arrival] = {}
        messages = [self.channel.Message(payload, channel=self.channel) for payload in payloads]
        for number, (row, message) in enumerate(zip(rows, messages, strict=True)):
            terms = self.holder.terms(message)
            if terms is not None:
                arrivals[number] = self._arrival(queue, row, terms)
        claims = self.driver.claim(list(arrivals.values()))
        late = set()
        for (number, arrival), claim in zip(arrivals.items(), claims, strict=True):
            if claim is None:
                logger.warning("message of queue %s is visible again: not taken", arrival.queue)
                late.add(number)
            else:
                self._hold(claim, messages[number])
        return [payload for number, payload in enumerate(payloads) if number not in late]

    def append(self, message: Any, delivery_tag: str) -> None:
        """Record a delivery, in the name of its lease if it has one.

        Kombu has made another object of the message, which takes over what the holder put on it.
        """
        known = self.claimed.pop(_name(message), None)
        if known is not None:
            vars(message).update(vars(known))
            message.delivery_tag = delivery_tag = known.delivery_tag
        super().append(message, delivery_tag)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Return what nobody will work on any more; kombu itself would return nothing."""
        self.return_idle()
        super().restore_unacked_once(stderr)

    def _arrival(self, queue: str, row: Any, terms: Terms) -> Arrival:
        name = self.channel.canonical_queue_name(queue)
        return Arrival(
            delivery=Delivery(name, row.msg_id, row.read_ct, row.last_read_at),
            queue=queue,
            terms=terms,
            hidden_until=self.channel.hidden_until,
            headers=row.headers,
        )

    def _hold(self, claim: Claim, message: Any) -> None:
        message.delivery_tag = claim.tag
        self.leased.add(claim.tag)
        self.holder.claimed(claim, message)
        self.claimed[_name(message)] = message


def _name(message: Any) -> tuple[str, int]:
    info = message.delivery_info
    return info.get("pgmq_queue"), info.get("pgmq_msg_id")
