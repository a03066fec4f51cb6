"""A kombu pgmq channel whose messages are leased.

Uses of kombu internals, as read in 5.7.0: of ``Channel`` the methods that are overridden here with
a leading underscore, and ``_noack_queues``, whose messages are deleted as they are read.
"""

from __future__ import annotations

from queue import Empty
from typing import TYPE_CHECKING, Any

from celery_lease.brokers.pgmq.qos import LeaseQoS
from celery_lease.brokers.settling import SettlingChannel, mix_in

if TYPE_CHECKING:
    from celery_lease.brokers.pgmq.driver import PgmqDriver
    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Holder


class Leasing(SettlingChannel):
    """What a leasing channel does differently; mixed into the class of a live one.

    Messages are touched by the consuming thread; acknowledged and rejected by any.
    """

    lease_clock: Clock
    hidden_until: float  # clock reading until which what was read last is nobody else's

    def _receive_messages(self: Any, queue: str, *args: Any, **kwargs: Any) -> list[Any]:
        self.hidden_until = self.lease_clock.now() + self.visibility_timeout
        messages = super()._receive_messages(queue, *args, **kwargs) or []  # type: ignore[misc]
        # Pgmq takes the oldest ones, and returns them as they lie in the table.
        return messages if self.fifo_mode else sorted(messages, key=_age)

    def _pgmq_messages_to_python(self: Any, messages: list[Any], queue: str) -> list[Any]:
        payloads = super()._pgmq_messages_to_python(messages, queue)  # type: ignore[misc]
        if queue in self._noack_queues:
            return payloads  # type: ignore[no-any-return]
        return self.qos.take(queue, messages, payloads)  # type: ignore[no-any-return]

    def _get_bulk(self: Any, queue: str, *args: Any, **kwargs: Any) -> Any:
        if self.qos.holder.backlogged:
            raise Empty
        return super()._get_bulk(queue, *args, **kwargs)  # type: ignore[misc]

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


def lease_messages(channel: Any, driver: PgmqDriver, holder: Holder, clock: Clock) -> LeaseQoS:
    """Make a live kombu *channel* lease the messages that *holder* has terms for.

    Channel and ``QoS`` object stay the same ones, with all that others have put on them, and only
    change their class. To be called before consuming starts.
    """
    qos = channel.qos
    qos.__class__ = LeaseQoS
    qos.driver, qos.holder = driver, holder
    qos.leased, qos.claimed = set(), {}
    mix_in(Leasing, channel)
    channel.lease_clock, channel.hidden_until = clock, 0.0
    return qos  # type: ignore[no-any-return]
