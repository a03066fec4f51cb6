"""Kombu's record of unacknowledged pgmq messages, with leases for those that want one.

Messages without a lease take kombu's own path, untouched. What is done with a leased one is
decided by a :class:`~celery_lease.core.delivery.Holder`; this class only tells it what kombu asks.

Uses of kombu internals, as read in 5.7.0: ``QoS._delivered/_quick_ack``, and what ``Channel`` puts
into ``delivery_info``: ``pgmq_queue`` and ``pgmq_msg_id``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from celery_lease.brokers.pgmq.driver import Arrival
from celery_lease.brokers.pgmq.fence import Delivery

if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Callable, Sequence

    from celery_lease.brokers.pgmq.driver import PgmqDriver
    from celery_lease.core.delivery import Claim, Holder, Terms

logger = logging.getLogger(__name__)


class LeaseQoS(virtual.QoS):
    """Claims leased messages before they are delivered, and routes what is asked to the holder.

    Touched by the consuming thread, and in :meth:`ack` and :meth:`reject` by whichever thread
    settles a message.
    """

    driver: PgmqDriver
    holder: Holder
    leased: set[str]  # tags, this channel's; a set operation is atomic
    claimed: dict[tuple[str, int], Any]  # messages to be delivered, as the holder knows them
    channel: Any
    _delivered: OrderedDict[str, Any]
    _quick_ack: Callable[[str], None]

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

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message and free its place in the prefetch window."""
        if not self._release(delivery_tag):
            super().ack(delivery_tag)
            return
        self.holder.complete(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop a message, or make it visible again."""
        if not self._release(delivery_tag):
            super().reject(delivery_tag, requeue=requeue)
        elif requeue:
            self.holder.hand_back([delivery_tag], front=False)
        else:
            self.holder.complete(delivery_tag)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Return what nobody will work on any more; kombu itself would return nothing."""
        leased = [tag for tag in self._delivered if tag in self.leased]
        ended = [tag for tag in leased if not self.holder.keeps(tag) and self._release(tag)]
        self.holder.hand_back(ended, front=True)
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

    def _release(self, delivery_tag: str) -> bool:
        """Free the place of a leased message; False if it is not one of this channel's."""
        if delivery_tag not in self.leased:
            return False
        self.leased.discard(delivery_tag)
        self._quick_ack(delivery_tag)
        return True


def _name(message: Any) -> tuple[str, int]:
    info = message.delivery_info
    return info.get("pgmq_queue"), info.get("pgmq_msg_id")
