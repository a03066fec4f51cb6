"""A kombu SQS channel whose messages are leased.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: of ``Channel`` the methods that are overridden
here with a leading underscore, ``hub`` and ``_consumers``, and ``Transport._callbacks``.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Any

from vine import transform

from celery_lease.brokers.settling import SettlingChannel, mix_in
from celery_lease.brokers.sqs import closing
from celery_lease.brokers.sqs.polls import NOT_SERVED, Poll, blocks_the_loop, guard
from celery_lease.brokers.sqs.qos import LeaseQoS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_lease.brokers.sqs.driver import SqsDriver
    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Holder

logger = logging.getLogger(__name__)

#: Share of a queue's visibility timeout that a poll may wait: a message counts from its beginning.
WAIT_SHARE = 3
#: Seconds until the next poll after one that was not served, or until the next look at a holder
#: that takes nothing, if kombu's interval is shorter.
PAUSE = 1.0


class Leasing(SettlingChannel):
    """What a leasing channel does differently; mixed into the class of a live one.

    Touched by the consuming thread only.
    """

    lease_driver: SqsDriver
    lease_clock: Clock
    polls: dict[int, Poll]  # those under way in the event loop, by number
    unserved: set[str]  # queues whose last poll was not served
    closing: bool  # the event loop is, and waits for the polls under way

    def basic_consume(self: Any, queue: str, *args: Any, **kwargs: Any) -> Any:
        """Consume, after learning what leases must know of the queue."""
        url = self._new_queue(queue)
        learned = self.lease_driver.learn(self, self.canonical_queue_name(queue), url)
        self._wait_no_longer(
            learned.visibility // WAIT_SHARE,
            f"queue {queue} hides what is received for {learned.visibility} s only",
        )
        if blocks_the_loop(self.hub):
            self._wait_no_longer(1, "this kombu polls inside the event loop, 5.7 does not")
        result = super().basic_consume(queue, *args, **kwargs)  # type: ignore[misc]
        self._name_arrivals(queue)
        return result

    def asynsqs(self: Any, queue: str | None = None) -> Any:
        """Return kombu's connection for polls, made harmless."""
        return guard(super().asynsqs(queue=queue))  # type: ignore[misc]

    def _wait_no_longer(self: Any, seconds: int, why: str) -> None:
        """Bound the wait of polls; none is shorter than a second."""
        seconds = max(1, seconds)
        if self.wait_time_seconds > seconds:
            self.wait_time_seconds = seconds
            logger.info("wait_time_seconds is %d: %s", seconds, why)

    def _name_arrivals(self: Any, queue: str) -> None:
        """Say which queue a message is from, and let no message that is not taken stop others."""
        deliver = self.connection._callbacks[queue]  # noqa: SLF001

        def arrive(raw: Any) -> Any:
            self.qos.queue = queue
            with suppress(Empty):
                return deliver(raw)

        self.connection._callbacks[queue] = arrive  # noqa: SLF001

    # Polls of the event loop.

    def _get_async(self: Any, queue: str, count: int = 1, callback: Any = None) -> Any:
        url, name = self._new_queue(queue), self.canonical_queue_name(queue)
        connection, poll = self.asynsqs(queue=name), Poll(self.lease_clock.now())
        closing.finish_polls(self)
        self.polls[id(poll)] = poll
        return self._get_from_sqs(
            queue_name=name,
            queue_url=url,
            connection=connection,
            count=_count(queue, count),
            callback=transform(self._on_poll_ready, callback, url, queue, poll),
        )

    def _on_poll_ready(
        self: Any, url: str, queue: str, poll: Poll, response: Mapping[str, Any]
    ) -> int:
        self.polls.pop(id(poll), None)
        self._note_service(queue, served=response is not NOT_SERVED)
        self.qos_of_polls.poll = poll.served(response)
        received = response.get("Messages") or []
        consumers = {} if self.closed else self.connection._callbacks  # noqa: SLF001
        shut = self.closing or self.qos_of_polls.holder.backlogged
        callback = None if shut else consumers.get(queue)
        if callback is None:
            self._release_arrivals(queue, url, received)
            return 0
        for raw in received:
            callback(self._message_to_python(raw, queue, url))
        return len(received)

    def _release_arrivals(self: Any, queue: str, url: str, received: list[Any]) -> None:
        if not received:
            return
        logger.info("nobody takes from queue %s: %d messages released", queue, len(received))
        handles = [raw["ReceiptHandle"] for raw in received]
        self.lease_driver.release(self.canonical_queue_name(queue), url, handles)

    def _loop1(self: Any, queue: str, fetched: Any = None) -> None:
        if self.closed or self.closing:
            return
        if queue not in self.unserved and not self.qos.holder.backlogged:
            super()._loop1(queue, fetched)  # type: ignore[misc]
            return
        pause = max(PAUSE, self.transport_options.get("polling_interval") or 0)
        self.hub.call_later(pause, self._schedule_queue, queue)

    def _note_service(self: Any, queue: str, *, served: bool) -> None:
        if served and queue in self.unserved:
            self.unserved.discard(queue)
            logger.info("SQS serves polls of queue %s again", queue)
        elif not served and queue not in self.unserved:
            self.unserved.add(queue)
            logger.warning("SQS does not serve polls of queue %s; trying on", queue)

    # Polls without an event loop.

    def _get_bulk(self: Any, queue: str, *args: Any, **kwargs: Any) -> Any:
        self.qos.poll, self.only_one = Poll(self.lease_clock.now()), _count(queue, 10) == 1
        try:
            return super()._get_bulk(queue, *args, **kwargs)  # type: ignore[misc]
        finally:
            self.only_one = False

    def _get_message_estimate(self: Any, *args: Any, **kwargs: Any) -> int:
        estimate = int(super()._get_message_estimate(*args, **kwargs))  # type: ignore[misc]
        return min(estimate, 1) if self.only_one else estimate

    def _get(self: Any, queue: str, *args: Any, **kwargs: Any) -> Any:
        self.qos.poll, self.qos.queue = Poll(self.lease_clock.now()), queue
        return super()._get(queue, *args, **kwargs)  # type: ignore[misc]


def _count(queue: str, count: int) -> int:
    """Return how many messages to ask for; of a FIFO queue one, to keep its groups in order."""
    return 1 if queue.endswith(".fifo") else count


def lease_messages(channel: Any, driver: SqsDriver, holder: Holder, clock: Clock) -> LeaseQoS:
    """Make a live kombu *channel* lease the messages that *holder* has terms for.

    Channel and ``QoS`` object stay the same ones, with all that others have put on them, and only
    change their class. To be called before consuming starts.
    """
    qos = channel.qos
    qos.__class__ = LeaseQoS
    qos.driver, qos.holder, qos.clock = driver, holder, clock
    qos.leased, qos.poll, qos.queue = set(), Poll(clock.now()), None
    mix_in(Leasing, channel)
    channel.lease_driver, channel.lease_clock = driver, clock
    channel.polls, channel.unserved, channel.closing = {}, set(), False
    channel.only_one = False
    channel.qos_of_polls = qos
    return qos  # type: ignore[no-any-return]
