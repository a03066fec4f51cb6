"""Kombu's record of unacknowledged pgmq messages, with leases for leased tasks.

Messages without a lease take kombu's own path. A :class:`~celery_lease.core.delivery.Holder`
decides about a leased message; this class only passes kombu's calls to it.

Uses of kombu internals, as read in 5.7.0: ``pgmq_queue`` and ``pgmq_msg_id``, which ``Channel``
puts into ``delivery_info``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from celery_lease.brokers.pgmq.fence import Delivery, ReceivedMessage
from celery_lease.brokers.qos import HoldingQoS
from celery_lease.core.keys import KeyAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_lease.brokers.pgmq.driver import PgmqDriver
    from celery_lease.core.delivery import Terms

logger = logging.getLogger(__name__)


class LeaseQoS(HoldingQoS, virtual.QoS):
    """Claims leased messages before they are delivered."""

    driver: PgmqDriver
    channel: Any

    @staticmethod
    def name_of(message: Any) -> tuple[str, int]:
        info = message.delivery_info
        return info.get("pgmq_queue"), info.get("pgmq_msg_id")

    def take(self, queue: str, rows: Sequence[Any], payloads: Sequence[Any]) -> list[Any]:
        """Claim the messages of a read from a *queue*; return the payloads that may be delivered.

        All claimed messages are held from here on.
        """
        leased: dict[int, ReceivedMessage] = {}
        messages = [self.channel.Message(payload, channel=self.channel) for payload in payloads]
        for number, (row, message) in enumerate(zip(rows, messages, strict=True)):
            terms = self.holder.terms(message)
            if terms is not None:
                leased[number] = self._received(queue, row, terms)
        claims = self.driver.claim(list(leased.values()))
        late = set()
        for (number, received), claim in zip(leased.items(), claims, strict=True):
            if claim is None:
                logger.warning("message of queue %s is visible again: not taken", received.queue)
                late.add(number)
            elif isinstance(claim, KeyAnswer):
                self.holder.parked(messages[number], received.queue, claim.by)
                late.add(number)
            else:
                if received.terms.exclusive is not None and self.driver.keys.fault is not None:
                    messages[number].lease_exclusive = None
                    messages[number].lease_fault = self.driver.keys.fault
                self.hold(claim, messages[number])
        return [payload for number, payload in enumerate(payloads) if number not in late]

    def _received(self, queue: str, row: Any, terms: Terms) -> ReceivedMessage:
        name = self.channel.canonical_queue_name(queue)
        return ReceivedMessage(
            delivery=Delivery(name, row.msg_id, row.read_ct, row.last_read_at),
            queue=queue,
            terms=terms,
            hidden_until=self.channel.hidden_until,
            headers=row.headers,
        )
