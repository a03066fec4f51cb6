"""Kombu's record of unacknowledged SQS messages, with leases for leased tasks.

Messages without a lease take kombu's own path. A :class:`~celery_lease.core.delivery.Holder`
decides about a leased message; this class only passes kombu's calls to it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kombu.transport import SQS as kombu_sqs  # noqa: N811  (a module)

from celery_lease.brokers.qos import HoldingQoS
from celery_lease.brokers.sqs.receipts import ReceivedMessage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_lease.brokers.sqs.driver import SqsDriver
    from celery_lease.brokers.sqs.polls import Poll
    from celery_lease.core.clock import Clock

logger = logging.getLogger(__name__)


class LeaseQoS(HoldingQoS, kombu_sqs.QoS):
    """Claims leased messages when they are received."""

    driver: SqsDriver
    clock: Clock
    channel: Any

    def take(self, queue: str, poll: Poll, payloads: Sequence[Any]) -> list[Any]:
        """Claim the messages of a *poll* of a *queue*; return the payloads that may be delivered.

        All claimed messages are held from here on. Messages that may be visible to others are left
        out.
        """
        return [payload for payload in payloads if self._take(queue, poll, payload)]

    def _take(self, queue: str, poll: Poll, payload: Any) -> bool:
        message = self.channel.Message(payload, channel=self.channel)
        terms = self.holder.terms(message)
        if terms is None:
            return True
        received = self._received(queue, poll, message)
        claim = self.driver.claim(received, terms, self.clock.now())
        if claim is None:
            logger.warning(
                "message of queue %s came too late, it may be visible again: not taken. The "
                "queue's visibility timeout must be longer than wait_time_seconds",
                received.queue,
            )
            return False
        self.hold(claim, message)
        return True

    def restore_unacked(self) -> Any:
        self.return_idle()
        return super().restore_unacked()

    def _received(self, queue: str, poll: Poll, message: Any) -> ReceivedMessage:
        info: Mapping[str, Any] = message.delivery_info
        attributes = info["sqs_message"].get("Attributes") or {}
        receives = int(attributes.get("ApproximateReceiveCount", 1))
        sent, served_at = attributes.get("SentTimestamp"), poll.served_at
        return ReceivedMessage(
            handle=message.delivery_tag,
            queue=self.channel.canonical_queue_name(queue),
            url=info["sqs_queue"],
            receives=receives,
            asked_at=poll.asked_at,
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
