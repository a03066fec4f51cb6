"""The SQS driver: what becomes of messages, as entries of batch calls.

It decides nothing, except for one rule that SQS leaves to its clients: nothing is sent under a
receipt handle that may be stale. Errors of the client library stop here and in :mod:`.batches`:
without a clear answer the result is :attr:`Answer.UNKNOWN`.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from celery_lease.brokers.losses import Losses
from celery_lease.brokers.qos import VirtualDriver
from celery_lease.brokers.sqs import dead
from celery_lease.brokers.sqs.batches import CHANGE, DELETE, Batches, Entry
from celery_lease.brokers.sqs.channel import Leasing, longest_poll
from celery_lease.brokers.sqs.clients import Clients
from celery_lease.brokers.sqs.dead import SqsDeadLetters
from celery_lease.brokers.sqs.fencing import fencing_token
from celery_lease.brokers.sqs.queues import Queue, Queues
from celery_lease.brokers.sqs.receipts import Receipt, Receipts, ReceivedMessage
from celery_lease.core.clock import Clock, SystemClock
from celery_lease.core.delivery import Answer, Capabilities, Claim, Reaped, Renewal, Terms
from celery_lease.core.driver import NO_BROADCASTS
from celery_lease.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_lease.core.findings import Doctor

logger = logging.getLogger(__name__)

#: Longest wait for all answers to one call from the worker's main thread, in seconds.
ANSWER_TIMEOUT = 5.0
#: Seconds after its receipt from which on SQS hides a message no longer, regardless of extensions.
LONGEST = 43_200
#: Seconds before that at which a lease ends, so that its task learns of it and clocks may differ.
MARGIN = 60
#: The most seconds for which a message that waits is left to its queue's visibility timeout, and
#: the seconds that are kept for calls which are late: a third of the rest may pass.
LEFT_ALONE, SPARE = 5.0, 10.0
#: Seconds between two looks at the queues' attributes.
QUEUES_INTERVAL = 300.0


class SqsDriver(VirtualDriver):
    """Leases on the queues of one connection. Thread-safe; not for use across a fork."""

    capabilities = Capabilities(
        extends=True,
        fences=False,
        confirms=False,
        granularity=1.0,
        reports_losses=False,
        dead_letters=True,
    )
    channel_class = Leasing
    label = "SQS"
    unaskable = NO_BROADCASTS  # a try would leave a queue behind
    lookup = (
        "SQS does not say which messages wait in a queue, or who received one; how many there "
        "are: ApproximateNumberOfMessages and ApproximateNumberOfMessagesNotVisible of the queue"
    )

    def __init__(self, clock: Clock, clients: Clients | None = None, channel: Any = None) -> None:
        """Only commands need *channel*, for queues that have no consumer."""
        self.clients = clients or Clients()
        self._losses = Losses(clock)
        self._copied: set[str] = set()  # tags of messages that are copied and not deleted
        self._letters = SqsDeadLetters(self.clients, channel)
        self.queues = Queues(self.clients)
        self.receipts = Receipts()
        self._clock = clock
        self._batches = Batches(self.clients, self.receipts, clock)
        self._queues_read_at = clock.now()

    @classmethod
    def connect(cls, channel: Any, clock: Clock | None = None) -> SqsDriver:
        """Return a driver; it learns each queue's access from a kombu *channel* at its consume."""
        return cls(clock or SystemClock(), channel=channel)

    longest_poll = staticmethod(longest_poll)

    @classmethod
    def doctor(cls) -> Doctor:
        from celery_lease.brokers.sqs import doctor  # noqa: PLC0415  (no worker needs it)

        return doctor

    def learn(self, channel: Any, queue: str, url: str) -> Queue:
        """Read the access to a *queue* that will be consumed, and its attributes."""
        self.clients.learn(channel, queue)
        return self.queues.learn(queue, url)

    def claim(self, received: ReceivedMessage, terms: Terms, now: float) -> Claim | None:
        """Put a received message under a lease; None if it may be visible to others by now."""
        queue = self.queues.get(received.url)
        good_until = received.asked_at + queue.visibility
        if good_until <= now:
            return None
        receipt = Receipt(
            received.handle,
            received.queue,
            received.url,
            good_until,
            received.backoff,
            received.raw,
        )
        self.receipts.add(receipt)
        token = fencing_token(received.served_at, received.sent_ms, received.receives)
        return Claim(
            tag=received.handle,
            token=token,
            queue=received.queue,
            deliveries=received.receives,
            losses=self._losses.delivered(
                received.handle,
                received.raw.get("MessageId", ""),
                again=received.receives > 1,
                waits=terms.waits,
                deliveries=received.receives,
                worker=terms.about.get("worker"),
                token=token,
                since=self._clock.wall().timestamp(),
            ),
            asked_at=now,
            seconds=min(terms.seconds, good_until - now),
            provisional=True,
            enough_for=_enough_for(good_until - now, terms.seconds),
            limit=received.asked_at + LONGEST - MARGIN - now,
            delivery_limit=queue.most_receives,
        )

    def extend(
        self, renewals: Sequence[Renewal], *, timeout: float = ANSWER_TIMEOUT
    ) -> list[Answer]:
        """Move expiries, rounded up to whole seconds; an expired lease cannot be checked."""
        asked_at = self._clock.now()
        entries: list[Entry | Answer] = []
        for each in renewals:
            receipt = self.receipts.good(each.tag, asked_at)
            if receipt is None:
                entries.append(Answer.UNKNOWN if each.late else Answer.LOST)
            else:
                entries.append(Entry(receipt, min(math.ceil(each.seconds), LONGEST)))
        return self._batches.ask(CHANGE, entries, timeout)

    def begin(self, tags: Sequence[str]) -> list[Answer]:
        self._losses.begin(tags)
        return [Answer.HELD] * len(tags)

    def complete(self, tags: Sequence[str]) -> list[Answer]:
        return self._batches.ask(DELETE, [self._entry(tag) for tag in tags], ANSWER_TIMEOUT)

    def requeue(
        self,
        tags: Sequence[str],
        *,
        orderly: bool = True,
        front: bool = True,
        why: Mapping[str, object] | None = None,
    ) -> list[Answer]:
        """Make messages visible at once; SQS neither keeps an order nor stores a reason.

        Messages that were rejected rather than requeued, with *front* False, wait for the seconds
        of kombu's backoff policy for their task.
        """
        self._losses.returned(tags, why, orderly=orderly)
        return self._batches.ask(
            CHANGE, [self._entry(tag, front=front) for tag in tags], ANSWER_TIMEOUT
        )

    def ended(self, tags: Sequence[str]) -> None:
        self._losses.ended(tags)

    def release(self, queue: str, url: str, handles: Sequence[str]) -> None:
        """Make messages visible that no consumer takes, right after their receipt."""
        until = self._clock.now() + self.queues.get(url).visibility
        for handle in handles:
            self.receipts.add(Receipt(handle, queue, url, until))
        answers = self.requeue(handles)
        if Answer.UNKNOWN in answers:
            logger.warning(
                "queue %s: %s not released, and hidden until the queue's visibility timeout is "
                "over",
                queue,
                counted(answers.count(Answer.UNKNOWN), "message"),
            )

    def reap(self, *, limit: int) -> list[Reaped]:
        """Return nothing: expired messages are visible by themselves. Forget stale handles."""
        del limit
        now = self._clock.now()
        self.receipts.sweep(now)
        if now - self._queues_read_at >= QUEUES_INTERVAL:
            self._queues_read_at = now
            self.queues.refresh()
        return []

    def dead_letter(self, tag: str, queue: str, about: Mapping[str, str] | None = None) -> Answer:
        """Copy a message to a dead-letter queue, which is created if needed, and then delete it."""
        receipt = self.receipts.good(tag, self._clock.now())
        if receipt is None:
            return Answer.LOST
        if tag not in self._copied:
            try:
                client = self.clients.client(receipt.queue, ANSWER_TIMEOUT)
                facts = {
                    "losses": self._losses.of(tag),
                    "about": dict(about or {}),
                    "history": self._losses.history(tag, dead.room(receipt)),
                }
                dead.copy(client, receipt, queue, facts, self._clock.wall())
            except (BotoCoreError, ClientError) as exc:
                self._batches.log_silence(receipt.queue, exc)
                return Answer.UNKNOWN
            self._copied.add(tag)
        (answer,) = self.complete([tag])
        if answer is not Answer.UNKNOWN:
            self._copied.discard(tag)
        return answer

    def dead_letters(self) -> SqsDeadLetters:
        """Return the dead-letter queues; letters that were read are hidden until :meth:`close`."""
        return self._letters

    def close(self) -> None:
        """Close the driver's connections; a later call opens them again."""
        self._letters.close()
        self.clients.close()

    def _entry(self, tag: str, *, front: bool | None = None) -> Entry | Answer:
        receipt = self.receipts.good(tag, self._clock.now())
        if receipt is None:
            return Answer.LOST
        if front is None:
            return Entry(receipt)
        return Entry(receipt, 0 if front else receipt.backoff)


def _enough_for(hidden: float, lease: float) -> float:
    """Return for how long a message may wait before its first extension.

    One that is *hidden* for longer than its *lease* has to be extended at once: its worker may die.
    """
    return 0.0 if hidden > lease else max(0.0, min(LEFT_ALONE, (hidden - SPARE) / 3))
