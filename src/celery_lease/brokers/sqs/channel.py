"""A kombu SQS channel whose messages are leased.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: the methods of ``Channel`` with a leading
underscore that are overridden here, ``hub`` and ``_consumers``, and ``Transport._callbacks``.
"""

from __future__ import annotations

import logging
from queue import Empty
from typing import TYPE_CHECKING, Any

from vine import transform

from celery_lease.brokers.qos import SettlingChannel, when_leasing
from celery_lease.brokers.sqs import closing
from celery_lease.brokers.sqs.polls import NOT_SERVED, Poll, blocks_the_loop, guard, watch
from celery_lease.brokers.sqs.qos import LeaseQoS
from celery_lease.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_lease.brokers.sqs.driver import SqsDriver
    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Holder
    from celery_lease.core.driver import Driver

logger = logging.getLogger(__name__)

#: The divisor of a queue's visibility timeout for the wait of a poll: a lease counts from its
#: start.
WAIT_SHARE = 3
#: Seconds until the next poll after one that was not served, or until the next look at a backlogged
#: holder, if kombu's interval is shorter.
PAUSE = 1.0


class Leasing(SettlingChannel):
    """Makes a channel lease its messages.

    Touched by the consuming thread only.
    """

    QoS = LeaseQoS
    lease_driver: SqsDriver
    polls: dict[int, Poll]  # under way in the event loop, by number
    poll: Poll  # the latest one without an event loop
    only_one: bool  # that poll may bring one message only
    unserved: set[str]  # queues whose last poll was not served
    closing: bool  # the event loop is closing, and waits for the polls under way

    def begin_leases(self: Any, driver: Driver, holder: Holder, clock: Clock) -> None:
        """Lease messages; no poll is under way yet."""
        self.polls, self.unserved, self.closing = {}, set(), False
        self.poll, self.only_one = Poll(clock.now()), False
        super().begin_leases(driver, holder, clock)

    @when_leasing
    def basic_consume(self: Any, queue: str, *args: Any, **kwargs: Any) -> Any:
        """Consume, after reading the attributes of the queue that leases need."""
        url = self._new_queue(queue)
        learned = self.lease_driver.learn(self, self.canonical_queue_name(queue), url)
        self._wait_no_longer(
            learned.visibility // WAIT_SHARE,
            f"queue {queue} hides what is received for {learned.visibility} s only",
        )
        if blocks_the_loop(self.hub):
            self._wait_no_longer(1, "this kombu polls inside the event loop, 5.7 does not")
        return super().basic_consume(queue, *args, **kwargs)  # type: ignore[misc]

    @when_leasing
    def asynsqs(self: Any, queue: str | None = None) -> Any:
        """Return kombu's connection for polls, with failures caught."""
        return guard(super().asynsqs(queue=queue))  # type: ignore[misc]

    @when_leasing
    def sqs(self: Any, queue: str | None = None) -> Any:
        """Return kombu's client, whose polls pass on the time of their answers."""
        return watch(super().sqs(queue=queue), self._note_served)  # type: ignore[misc]

    def _wait_no_longer(self: Any, seconds: int, why: str) -> None:
        """Limit the wait of polls to *seconds*, but to no less than one."""
        seconds = max(1, seconds)
        if self.wait_time_seconds > seconds:
            self.wait_time_seconds = seconds
            logger.info("wait_time_seconds is %d: %s", seconds, why)

    def _take(self: Any, queue: str, url: str, received: Sequence[Any], poll: Poll) -> list[Any]:
        """Hold the messages of a *poll*; return the payloads that are to be delivered.

        Before any of them is delivered, which may take as long as a task.
        """
        if self.closing or self.lease_holder.backlogged:
            self._release_received(queue, url, received)
            return []
        payloads = [self._message_to_python(raw, queue, url) for raw in received]
        no_ack = queue in self._noack_queues  # kombu has deleted its messages
        return payloads if no_ack else self.qos.take(queue, poll, payloads)

    def _release_received(self: Any, queue: str, url: str, received: Sequence[Any]) -> None:
        if not received:
            return
        count = counted(len(received), "message")
        logger.info("queue %s is not consumed: %s released", queue, count)
        handles = [raw["ReceiptHandle"] for raw in received]
        self.lease_driver.release(self.canonical_queue_name(queue), url, handles)

    # Polls of the event loop.

    @when_leasing
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
        received = response.get("Messages") or []
        deliver = None if self.closed else self.connection._callbacks.get(queue)  # noqa: SLF001
        if deliver is None:
            self._release_received(queue, url, received)
            return 0
        payloads = self._take(queue, url, received, poll.served(response))
        for payload in payloads:
            deliver(payload)
        return len(payloads)

    @when_leasing
    def _loop1(self: Any, queue: str, fetched: Any = None) -> None:
        if self.closed or self.closing:
            return
        if queue not in self.unserved and not self.lease_holder.backlogged:
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
            logger.warning("SQS does not serve polls of queue %s: they are repeated", queue)

    # Polls without an event loop.

    @when_leasing
    def _get_bulk(self: Any, queue: str, *args: Any, **kwargs: Any) -> Any:
        self.poll, self.only_one = Poll(self.lease_clock.now()), _count(queue, 10) == 1
        try:
            return super()._get_bulk(queue, *args, **kwargs)  # type: ignore[misc]
        finally:
            self.only_one = False

    def _note_served(self: Any, headers: Mapping[str, Any]) -> None:
        self.poll = self.poll.served(headers)

    @when_leasing
    def _messages_to_python(self: Any, messages: Sequence[Any], queue: str) -> list[Any]:
        payloads = self._take(queue, self._new_queue(queue), messages, self.poll)
        if not payloads:
            raise Empty
        return payloads  # type: ignore[no-any-return]

    @when_leasing
    def _get_message_estimate(self: Any, *args: Any, **kwargs: Any) -> int:
        estimate = int(super()._get_message_estimate(*args, **kwargs))  # type: ignore[misc]
        return min(estimate, 1) if self.only_one else estimate

    @when_leasing
    def _get(self: Any, queue: str, *args: Any, **kwargs: Any) -> Any:
        self.poll = Poll(self.lease_clock.now())
        return super()._get(queue, *args, **kwargs)  # type: ignore[misc]


def _count(queue: str, count: int) -> int:
    """Return how many messages to ask for; one of a FIFO queue, to keep its groups in order."""
    return 1 if queue.endswith(".fifo") else count


def longest_poll(connection: Any) -> float:
    """Return the seconds for which a worker's last poll may go on after the worker stops."""
    wait = connection.transport_options.get("wait_time_seconds")
    if wait is None:
        wait = type(connection.transport).Channel.default_wait_time_seconds
    return float(wait) + closing.GRACE
