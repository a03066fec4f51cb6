"""Kombu's record of unacknowledged SQS messages, with leases for those that want one.

Messages without a lease take kombu's own path, untouched. What is done with a leased one is
decided by a :class:`~celery_lease.core.delivery.Holder`; this class only tells it what kombu asks.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: that a :class:`queue.Empty` raised while a
message is fetched means "nothing was received".
"""

from __future__ import annotations

import logging
from queue import Empty
from typing import TYPE_CHECKING, Any

from kombu.transport import SQS as kombu_sqs  # noqa: N811  (a module)

from celery_lease.brokers.settling import SettlingQoS
from celery_lease.brokers.sqs.driver import Arrival

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_lease.brokers.sqs.driver import SqsDriver
    from celery_lease.brokers.sqs.polls import Poll
    from celery_lease.core.clock import Clock

logger = logging.getLogger(__name__)


class LeaseQoS(SettlingQoS, kombu_sqs.QoS):
    """Claims leased messages on arrival."""

    driver: SqsDriver
    clock: Clock
    poll: Poll  # the one that brought the message at hand
    channel: Any
    queue: str | None  # kombu's name of the queue that the message at hand is from

    def can_consume(self) -> bool:
        """Tell whether another poll may be sent."""
        return not self.holder.backlogged and bool(super().can_consume())

    def append(self, message: Any, delivery_tag: str) -> None:
        """Record a delivery: under a lease if the holder names terms for it.

        Raises:
            queue.Empty: The message may be somebody else's by now. Nobody here will see it.
        """
        terms = self.holder.terms(message)
        if terms is None:
            super().append(message, delivery_tag)
            return
        arrival = self._arrival(message, delivery_tag)
        claim = self.driver.claim(arrival, terms, self.clock.now())
        if claim is None:
            logger.warning(
                "message of queue %s came too late, it may be visible again: not taken. The "
                "queue's visibility timeout must be longer than wait_time_seconds",
                arrival.queue,
            )
            raise Empty
        self.leased.add(claim.tag)
        super().append(message, claim.tag)
        self.holder.claimed(claim, message)

    def restore_unacked(self) -> Any:
        """Return what nobody will work on any more; the channel is being closed."""
        self.return_idle()
        return super().restore_unacked()

    def _arrival(self, message: Any, handle: str) -> Arrival:
        info: Mapping[str, Any] = message.delivery_info
        queue = self.queue or info.get("routing_key") or ""
        attributes = info["sqs_message"].get("Attributes") or {}
        receives = int(attributes.get("ApproximateReceiveCount", 1))
        sent = attributes.get("SentTimestamp")
        served_at = self.poll.served_at
        return Arrival(
            handle=handle,
            queue=self.channel.canonical_queue_name(queue),
            url=info["sqs_queue"],
            receives=receives,
            asked_at=self.poll.asked_at,
            served_at=int(self.clock.wall().timestamp()) if served_at is None else served_at,
            sent_ms=None if sent is None else int(sent),
            backoff=self._backoff(queue, message, receives),
            raw=info["sqs_message"],
        )

    def _backoff(self, queue: str, message: Any, receives: int) -> int:
        """Return the seconds that kombu's backoff policy has for a task's next delivery."""
        options = self.channel.predefined_queues.get(queue) or {}
        if (message.headers or {}).get("task") not in (options.get("backoff_tasks") or ()):
            return 0
        return int((options.get("backoff_policy") or {}).get(receives) or 0)
