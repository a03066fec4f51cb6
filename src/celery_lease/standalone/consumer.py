"""Leases for a plain kombu consumer, on the same driver as the Celery worker's.

Every message that the channel receives is leased, a lease is extended only when its
:class:`LeasedMessage` is asked to, and only its holder's acknowledgement counts. Example::

    from kombu.mixins import ConsumerMixin

    class Encoder(ConsumerMixin):
        def get_consumers(self, Consumer, channel):
            self.leases = lease_consumer(channel, seconds=120)
            return [Consumer(QUEUES, on_message=self.encode, prefetch_count=1)]

        def encode(self, message):
            heartbeat = Heartbeat()
            with LeaseExtender(CONFIG).attach(self.leases.lease_of(message), heartbeat):
                for chunk in chunks(message.payload):
                    heartbeat.beat()
                    work(chunk)
            message.ack()

        def on_iteration(self):
            self.leases.reap()

A holder that is killed, or stops beating, loses its messages to the next :meth:`LeaseConsumer.reap`
of any consumer or worker on the same database. Where the driver reaps, that call also replaces
kombu's own sweep, which a channel with leases skips: it returns plain messages that are older than
the channel's ``visibility_timeout``. So call it, in one consumer at least.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from celery_lease import brokers
from celery_lease.core.clock import Clock, SystemClock
from celery_lease.core.delivery import Answer, Claim, Reaped, Renewal, Terms
from celery_lease.core.errors import ReceiptHandleExpiredError
from celery_lease.core.stats import Fact, standalone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_lease.core.driver import Driver

#: Longest wait for an answer to one extension, in seconds.
ANSWER_TIMEOUT = 5.0
#: Seconds between two sweeps for expired leases, even if :meth:`reap` is called more often.
REAP_INTERVAL = 1.0

_Call = tuple["Callable[[list[Any]], list[Answer]]", list[Any]]


@dataclass(slots=True, eq=False)
class LeasedMessage:
    """The lease of one received message, as a target of :class:`~celery_lease.LeaseExtender`."""

    counts_extensions: ClassVar[bool] = True  #: an extender does not count its extensions again

    id: str  #: the delivery id at the broker
    fencing_token: int
    deliveries: int  #: this one included
    losses: int  #: earlier deliveries that ended by a crash or an expiry
    queue: str
    _driver: Driver = field(repr=False)
    _clock: Clock = field(repr=False)
    is_lost: bool = False  #: the broker answered an extension with a loss
    #: The lease was extended, so that its work may go on when its channel closes.
    is_worked_on: bool = field(default=False, repr=False)

    def extend_visibility(self, seconds: float) -> None:
        """Keep the message hidden from other consumers for *seconds* from now on.

        Raises:
            ReceiptHandleExpiredError: The lease has expired or ended: stop the work.
            TimeoutError: The broker did not answer; the lease is unchanged. Try again.
        """
        self.is_worked_on = True
        renewal, asked_at = Renewal(self.id, seconds), self._clock.now()
        (answer,) = self._driver.extend([renewal], timeout=min(ANSWER_TIMEOUT, seconds))
        took = self._clock.now() - asked_at
        standalone.answered(standalone.CONSUMER, self.queue, answer.value, took)
        if answer is Answer.LOST:
            if not self.is_lost:
                self.is_lost = True
                standalone.count(Fact.LOST, standalone.CONSUMER, self.queue, "expired")
            raise ReceiptHandleExpiredError(self.id)
        if answer is Answer.UNKNOWN:
            raise TimeoutError(f"no answer to the extension of message {self.id}")


class LeaseConsumer:
    """Leases all messages of one channel; implements :class:`~celery_lease.core.delivery.Holder`.

    Messages may be acknowledged and extended by any thread; the rest is for the consuming thread.
    """

    def __init__(self, driver: Driver, seconds: float, clock: Clock) -> None:
        self.seconds = seconds
        self.consumer_id = f"{socket.gethostname()}:{os.getpid()}:{threading.get_ident()}"
        self._driver = driver
        self._clock = clock
        self._held: dict[str, LeasedMessage] = {}
        self._unanswered: deque[_Call] = deque()
        self._homeless: deque[Any] = deque()
        self._reaped_at = float("-inf")
        standalone.holders.add(self)

    def lease_of(self, message: Any) -> LeasedMessage:
        """Return the lease of a message that this consumer received and has not settled.

        Raises:
            KeyError: There is no such message.
        """
        return self._held[message.delivery_tag]

    def reap(self, *, limit: int = 50) -> list[Reaped]:
        """Return expired leases and overdue plain messages, of any holder; once a second at most.

        Also repeats calls that the broker has not answered before.

        Raises:
            OSError: The broker did not answer; the next call tries again.
        """
        now = self._clock.now()
        if now - self._reaped_at < REAP_INTERVAL:
            return []
        self._reaped_at = now
        self._settle_again()
        return self._driver.reap(limit=limit)

    def queues_held(self) -> list[str]:
        return [lease.queue for lease in list(self._held.values()) if not lease.is_lost]

    def close(self) -> None:
        """Repeat unanswered calls and close the driver's connections; after the channel's end."""
        self._settle_again()
        self._driver.close()

    # Called by a channel (Holder).

    def terms(self, message: Any) -> Terms:
        about = {"id": message.delivery_tag, "worker": self.consumer_id}
        return Terms(seconds=self.seconds, about=about)

    def plain_task(self, message: Any) -> str:
        """Return "": every message is leased."""
        del message
        return ""

    def claimed(self, claim: Claim, message: Any) -> None:  # noqa: ARG002
        self._held[claim.tag] = LeasedMessage(
            claim.tag,
            claim.token,
            claim.deliveries,
            claim.losses,
            claim.queue,
            self._driver,
            self._clock,
        )
        standalone.count(Fact.GRANTED, standalone.CONSUMER, claim.queue)
        if claim.provisional:  # not answered yet: the lease has the broker's own length
            self._driver.extend([Renewal(claim.tag, self.seconds)], timeout=ANSWER_TIMEOUT)

    def complete(self, tag: str) -> None:
        """Acknowledge, or drop, a message; without effect if its lease has ended."""
        if self._end(tag, Fact.ENDED, "completed"):
            self._driver.ended([tag])
            self._settle(self._driver.complete, [tag])

    def drop(self, tag: str) -> None:
        if self._end(tag, Fact.ENDED, "dropped"):
            self._driver.ended([tag])
            self._settle(self._driver.drop, [tag])

    def lost(self, tags: Sequence[str]) -> None:
        """Forget messages that have other holders; an extension of one raises an error."""
        for tag in tags:
            self._end(tag, Fact.LOST, "taken")

    def requeue(self, tags: Sequence[str], *, front: bool) -> None:
        held = [tag for tag in tags if self._end(tag, Fact.ENDED, "handed_back")]
        self._settle(partial(self._driver.requeue, orderly=True, front=front), held)

    def keeps(self, tag: str) -> bool:
        """Whether the message is being extended: its work may go on elsewhere, or expires."""
        held = self._held.get(tag)
        return held is not None and held.is_worked_on

    def outran(self, message: Any, held: float, queue: str, timeout: float) -> bool:
        """Do nothing: every message is leased."""
        del message, held, queue, timeout
        return False

    def parked(self, message: Any, queue: str, by: str) -> None:
        """Do nothing: no message here needs a key."""
        del message, queue, by

    def unclaimed(self, delivery: Any) -> None:
        """Store a message that could not be leased; the next :meth:`reap` returns it."""
        self._homeless.append(delivery)

    @property
    def backlogged(self) -> bool:
        """Whether messages wait here for a broker that did not answer."""
        return bool(self._homeless)

    def _end(self, tag: str, fact: Fact, how: str) -> bool:
        """Forget a lease and count its end; return whether it was held."""
        lease = self._held.pop(tag, None)
        if lease is not None and not lease.is_lost:  # its loss was counted
            standalone.count(fact, standalone.CONSUMER, lease.queue, how)
        return lease is not None

    def _settle(self, call: Callable[[list[Any]], list[Answer]], what: list[Any]) -> None:
        answers = call(what)
        again = [
            each for each, answer in zip(what, answers, strict=True) if answer is Answer.UNKNOWN
        ]
        if again:
            self._unanswered.append((call, again))

    def _settle_again(self) -> None:
        for _ in range(len(self._unanswered)):
            self._settle(*self._unanswered.popleft())
        while self._homeless:
            answers = self._driver.return_unclaimed([self._homeless[0]])
            if Answer.UNKNOWN in answers:
                return
            self._homeless.popleft()


def lease_consumer(
    channel: Any, seconds: float = 300.0, *, clock: Clock | None = None
) -> LeaseConsumer:
    """Lease every message that a live kombu *channel* receives.

    Call it before anything is consumed, and again for each new channel: kombu's mixins open one
    for each connection.

    Args:
        channel: A channel of a transport with a driver; its consumers must not be ``no_ack``.
        seconds: The time from a message's receipt, or its extension, to its expiry.
        clock: None: the host's clock.

    Raises:
        UnsupportedBroker: The transport has no driver.
    """
    driver, clock = brokers.driver(channel), clock or SystemClock()
    leases = LeaseConsumer(driver, seconds, clock)
    driver.lease_messages(channel, leases, clock)
    return leases
