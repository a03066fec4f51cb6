"""A kombu pgmq channel whose messages are leased.

Uses of kombu internals, as read in 5.7.0: the methods of ``Channel`` with a leading underscore that
are overridden here, and ``_noack_queues``, whose messages are deleted as they are read.
"""

from __future__ import annotations

import logging
from queue import Empty
from typing import TYPE_CHECKING, Any

from celery_lease.brokers.pgmq.qos import LeaseQoS
from celery_lease.brokers.qos import SettlingChannel, when_leasing

if TYPE_CHECKING:
    from celery_lease.brokers.pgmq.driver import PgmqDriver

logger = logging.getLogger(__name__)

#: Milliseconds by which a poll ends before the server would end it.
MARGIN = 1000


class Leasing(SettlingChannel):
    """Makes a channel lease its messages.

    The consuming thread touches messages; any thread acknowledges and rejects them.
    """

    QoS = LeaseQoS
    lease_driver: PgmqDriver
    hidden_until: float = 0.0  # clock reading until which the last read hides its messages

    @when_leasing
    def basic_consume(self: Any, queue: str, *args: Any, **kwargs: Any) -> Any:
        """Consume, with polls that are shorter than the server's limit for a statement.

        Otherwise the server would end each poll, and kombu the connection.
        """
        limit = self.lease_driver.statement_timeout()
        seconds = max(0, limit - MARGIN) // 1000
        if limit and self.wait_time_seconds > seconds:
            self.wait_time_seconds = seconds
            text = "wait_time_seconds is %d: the server ends statements after %d ms"
            logger.info(text, seconds, limit)
        return super().basic_consume(queue, *args, **kwargs)  # type: ignore[misc]

    @when_leasing
    def _receive_messages(self: Any, queue: str, *args: Any, **kwargs: Any) -> list[Any]:
        self.hidden_until = self.lease_clock.now() + self.visibility_timeout
        messages = super()._receive_messages(queue, *args, **kwargs) or []  # type: ignore[misc]
        # Pgmq takes the oldest messages, but returns them in the order of the table.
        return messages if self.fifo_mode else sorted(messages, key=_age)

    @when_leasing
    def _pgmq_messages_to_python(self: Any, messages: list[Any], queue: str) -> list[Any]:
        payloads = super()._pgmq_messages_to_python(messages, queue)  # type: ignore[misc]
        if queue in self._noack_queues:
            return payloads  # type: ignore[no-any-return]
        return self.qos.take(queue, messages, payloads)  # type: ignore[no-any-return]

    @when_leasing
    def _get_bulk(self: Any, queue: str, *args: Any, **kwargs: Any) -> Any:
        if self.lease_holder.backlogged:
            raise Empty
        return super()._get_bulk(queue, *args, **kwargs)  # type: ignore[misc]

    @when_leasing
    def _get(self: Any, queue: str, timeout: float | None = None, no_ack: bool = False) -> Any:
        del timeout
        messages = self._receive_messages(queue, qty=1, no_ack=no_ack)
        if no_ack and messages:
            return self._pgmq_message_to_python(messages[0], queue)
        for payload in self._pgmq_messages_to_python(messages, queue):
            return payload
        raise Empty


def _age(message: Any) -> int:
    return int(message.msg_id)
