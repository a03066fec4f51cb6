"""Leases for a plain kombu consumer, on the same driver as the Celery worker's.

What it decides: every message that the channel receives is leased, a lease is extended only when
its :class:`LeasedMessage` is asked to, and only its holder's acknowledgement counts. Example::

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
of any consumer or worker on the same database. Where the driver reaps, that call also takes the
place of kombu's own sweep, which a channel with leases leaves out: it returns plain messages that
are older than the channel's ``visibility_timeout``. So call it, in one consumer at least.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_lease import brokers
from celery_lease.core.clock import SystemClock
from celery_lease.core.delivery import Answer, Claim, Reaped, Renewal, Terms
from celery_lease.core.errors import ReceiptHandleExpiredError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Driver

#: Longest wait for an answer to one extension, in seconds.
ANSWER_TIMEOUT = 5.0
#: Seconds between two sweeps for expired leases, however often they are asked for.
REAP_INTERVAL = 1.0

_Call = tuple["Callable[[list[Any]], list[Answer]]", list[Any]]


@dataclass(slots=True, eq=False)
class LeasedMessage:
    """The lease of one received message, as :class:`~celery_lease.LeaseExtender` wants it."""

    id: str  #: names this delivery at the broker
    fencing_token: int
    deliveries: int  #: this one included
    losses: int  #: earlier ones that ended by crash or expiry
    _driver: Driver = field(repr=False)
    _extended: bool = field(default=False, repr=False)

    def extend_visibility(self, seconds: float) -> None:
        """Keep the message from everybody else for *seconds* from now on.

        Raises:
            ReceiptHandleExpiredError: The lease has expired or ended: stop the work.
            TimeoutError: The broker did not answer; the lease stands as it was. Ask again.
        """
        self._extended = True
        renewal = Renewal(self.id, seconds)
        (answer,) = self._driver.extend([renewal], timeout=min(ANSWER_TIMEOUT, seconds))
        if answer is Answer.LOST:
            raise ReceiptHandleExpiredError(self.id)
        if answer is Answer.UNKNOWN:
            raise TimeoutError(f"no answer to the extension of message {self.id}")

    @property
    def is_worked_on(self) -> bool:
        """Whether somebody extends it, so that its work may go on when its channel closes."""
        return self._extended


class LeaseConsumer:
    """Leases all messages of one channel; implements :class:`~celery_lease.core.delivery.Holder`.

    Messages may be acknowledged and extended by any thread; the rest is for the consuming one.
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

    def lease_of(self, message: Any) -> LeasedMessage:
        """Return the lease of a message that this consumer received and has not settled.

        Raises:
            KeyError: There is none.
        """
        return self._held[message.delivery_tag]

    def reap(self, *, limit: int = 50) -> list[Reaped]:
        """Return expired leases, and overdue plain messages, of anybody; at most once a second.

        Also tells the broker once more what it has not answered before.

        Raises:
            OSError: The broker did not answer; the next call tries again.
        """
        now = self._clock.now()
        if now - self._reaped_at < REAP_INTERVAL:
            return []
        self._reaped_at = now
        self._settle_again()
        return self._driver.reap(limit=limit)

    def close(self) -> None:
        """Settle what is left and close the connections for leases; after the channel's end."""
        self._settle_again()
        self._driver.close()

    # A channel asks (Holder).

    def terms(self, message: Any) -> Terms:
        """Lease every message."""
        about = {"id": message.delivery_tag, "worker": self.consumer_id}
        return Terms(seconds=self.seconds, about=about)

    def claimed(self, claim: Claim, message: Any) -> None:  # noqa: ARG002
        """Keep the lease of a message that has arrived."""
        self._held[claim.tag] = LeasedMessage(
            claim.tag, claim.token, claim.deliveries, claim.losses, self._driver
        )
        if claim.provisional:  # not answered: the lease is as long as the broker made it
            self._driver.extend([Renewal(claim.tag, self.seconds)], timeout=ANSWER_TIMEOUT)

    def complete(self, tag: str) -> None:
        """Acknowledge, or drop, a message; if its lease has ended, that changes nothing."""
        if self._held.pop(tag, None) is not None:
            self._settle(self._driver.complete, [tag])

    def drop(self, tag: str) -> None:
        """Drop a message, where the broker tells that from an acknowledgement."""
        if self._held.pop(tag, None) is not None:
            self._settle(self._driver.drop, [tag])

    def lost(self, tags: Sequence[str]) -> None:
        """Forget messages that are with others; extending one says so."""
        for tag in tags:
            self._held.pop(tag, None)

    def hand_back(self, tags: Sequence[str], *, front: bool) -> None:
        """Return messages to their queues, not counted as losses."""
        held = [tag for tag in tags if self._held.pop(tag, None) is not None]
        self._settle(partial(self._driver.hand_back, orderly=True, front=front), held)

    def keeps(self, tag: str) -> bool:
        """Keep what is being extended: the work may go on in another thread, and expires if not."""
        held = self._held.get(tag)
        return held is not None and held.is_worked_on

    def unclaimed(self, attempt: Any) -> None:
        """Return a message that could not be leased at the next :meth:`reap`."""
        self._homeless.append(attempt)

    @property
    def backlogged(self) -> bool:
        """Whether messages wait here for a broker that did not answer."""
        return bool(self._homeless)

    def _settle(self, tell: Callable[[list[Any]], list[Answer]], what: list[Any]) -> None:
        answers = tell(what)
        again = [
            each for each, answer in zip(what, answers, strict=True) if answer is Answer.UNKNOWN
        ]
        if again:
            self._unanswered.append((tell, again))

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
    """Make every message that a live kombu *channel* receives carry a lease.

    To be called before anything is consumed, and again for each new channel: kombu's mixins make
    one for each connection.

    Args:
        channel: Of a transport that has a driver; consumers on it must not be ``no_ack``.
        seconds: A lease expires so long after its message arrived, or was extended.
        clock: None: the host's.

    Raises:
        UnsupportedBroker: The transport has no driver.
    """
    driver, clock = brokers.driver(channel), clock or SystemClock()
    leases = LeaseConsumer(driver, seconds, clock)
    brokers.lease_messages(channel, driver, leases, clock)
    return leases
