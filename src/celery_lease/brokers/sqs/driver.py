"""The SQS driver: entries of batch calls, ten to a call, and the meaning of their answers.

It decides nothing, except for one rule that SQS leaves to its clients: nothing is sent under a
receipt handle that may be stale. Errors of the client library stop in this module: without a clear
answer the result is :attr:`Answer.UNKNOWN`.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
)

from celery_lease.brokers.losses import Losses
from celery_lease.brokers.qos import VirtualDriver
from celery_lease.brokers.sqs import dead
from celery_lease.brokers.sqs.answers import answers_of, failures_of
from celery_lease.brokers.sqs.calls import do_all
from celery_lease.brokers.sqs.channel import Leasing, longest_poll
from celery_lease.brokers.sqs.clients import Clients
from celery_lease.brokers.sqs.dead import SqsDeadLetters
from celery_lease.brokers.sqs.fencing import fencing_token
from celery_lease.brokers.sqs.queues import Queue, Queues
from celery_lease.brokers.sqs.receipts import Receipt, Receipts
from celery_lease.core.clock import SystemClock
from celery_lease.core.delivery import Answer, Capabilities, Claim, Reaped, Renewal, Terms
from celery_lease.core.driver import NO_BROADCASTS
from celery_lease.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from celery_lease.brokers.sqs.receipts import ReceivedMessage
    from celery_lease.core.clock import Clock
    from celery_lease.core.findings import Doctor

logger = logging.getLogger(__name__)

#: Entries in one call, SQS's limit.
BATCH = 10
#: Longest wait for all answers to one call from the worker's main thread, in seconds.
ANSWER_TIMEOUT = 5.0
#: Seconds after its receipt from which on SQS hides a message no longer, regardless of extensions.
LONGEST = 43_200
#: Seconds before that at which a lease ends, so that its task learns of it and clocks may differ.
MARGIN = 60
#: Seconds between two looks at the queues' attributes.
QUEUES_INTERVAL = 300.0

#: After these errors the call had no effect; after any other error it may have had.
_NOT_DONE = (ClientError, ConnectTimeoutError, EndpointConnectionError)

_CHANGE, _DELETE = "change_message_visibility_batch", "delete_message_batch"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A change of one message."""

    receipt: Receipt
    seconds: int | None = None  #: the new visibility timeout; None: delete it

    def as_sent(self, number: str) -> dict[str, Any]:
        entry: dict[str, Any] = {"Id": number, "ReceiptHandle": self.receipt.handle}
        if self.seconds is not None:
            entry["VisibilityTimeout"] = self.seconds
        return entry


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
        #: Queues whose last call failed, with the error. From any thread: each step is atomic.
        self._silent: dict[str, Exception] = {}
        self._queues_read_at = clock.now()

    @classmethod
    def connect(cls, channel: Any, clock: Clock | None = None) -> SqsDriver:
        """Return a driver; it learns each queue's access from a kombu *channel* at its consume."""
        return cls(clock or SystemClock(), channel=channel)

    @classmethod
    def longest_poll(cls, connection: Any) -> float:
        """Return the seconds for which a worker's last poll may go on."""
        return longest_poll(connection)

    @classmethod
    def doctor(cls) -> Doctor:
        """Return the module with the checks of this broker."""
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
            ),
            asked_at=now,
            seconds=min(terms.seconds, good_until - now),
            provisional=True,
            limit=received.asked_at + LONGEST - MARGIN - now,
            delivery_limit=queue.most_receives,
        )

    def extend(
        self, renewals: Sequence[Renewal], *, timeout: float = ANSWER_TIMEOUT
    ) -> list[Answer]:
        """Move expiries, rounded up to whole seconds; an expired lease cannot be checked."""
        asked_at = self._clock.now()
        entries: list[_Entry | Answer] = []
        for each in renewals:
            receipt = self.receipts.good(each.tag, asked_at)
            if receipt is None:
                entries.append(Answer.UNKNOWN if each.late else Answer.LOST)
            else:
                entries.append(_Entry(receipt, min(math.ceil(each.seconds), LONGEST)))
        return self._ask(_CHANGE, entries, timeout)

    def begin(self, tags: Sequence[str]) -> list[Answer]:
        """Record that tasks begin: from now on, the end of one without an outcome is a loss."""
        self._losses.begin(tags)
        return [Answer.HELD] * len(tags)

    def complete(self, tags: Sequence[str]) -> list[Answer]:
        """Delete messages."""
        self._losses.ended(tags)
        return self._ask(_DELETE, [self._entry(tag) for tag in tags], ANSWER_TIMEOUT)

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
        if orderly:
            self._losses.ended(tags)
        else:
            for tag in tags:
                self._losses.lost(tag, why)
        return self._ask(_CHANGE, [self._entry(tag, front=front) for tag in tags], ANSWER_TIMEOUT)

    def ended(self, tags: Sequence[str]) -> None:
        """Record that deliveries end in order, before the call: SQS may serve them at once."""
        self._losses.ended(tags)

    def release(self, queue: str, url: str, handles: Sequence[str]) -> None:
        """Make messages visible that no consumer takes, right after their receipt."""
        until = self._clock.now() + self.queues.get(url).visibility
        for handle in handles:
            self.receipts.add(Receipt(handle, queue, url, until))
        answers = self.requeue(handles)
        if Answer.UNKNOWN in answers:
            logger.warning(
                "queue %s: its visibility timeout has to pass for %s, which could not be released",
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
                self._log_silence(receipt.queue, exc)
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

    def _entry(self, tag: str, *, front: bool | None = None) -> _Entry | Answer:
        receipt = self.receipts.good(tag, self._clock.now())
        if receipt is None:
            return Answer.LOST
        if front is None:
            return _Entry(receipt)
        return _Entry(receipt, 0 if front else receipt.backoff)

    def _ask(
        self, operation: str, entries: Sequence[_Entry | Answer], timeout: float
    ) -> list[Answer]:
        """Call in tens, by queue, several at once; calls that would be too late are unanswered."""
        answers = [each if isinstance(each, Answer) else Answer.UNKNOWN for each in entries]
        give_up_at = self._clock.now() + timeout
        silent: set[str] = set()  # shared by the threads, like the answers: each step is atomic

        def ask(batch: list[tuple[int, _Entry]]) -> None:
            url = batch[0][1].receipt.url
            left = give_up_at - self._clock.now()
            if url in silent or left <= 0:
                return
            for index, answer in self._ask_ten(operation, batch, left).items():
                answers[index] = answer
            if all(answers[index] is Answer.UNKNOWN for index, _ in batch):
                silent.add(url)

        do_all(ask, _tens(entries))
        return answers

    def _ask_ten(
        self, operation: str, batch: list[tuple[int, _Entry]], timeout: float
    ) -> dict[int, Answer]:
        receipt = batch[0][1].receipt
        asked_at = self._clock.now()
        numbered = {str(index): entry for index, entry in batch}
        response: dict[str, Any] = {}
        maybe_done = False
        try:
            client = self.clients.client(receipt.queue, timeout)
            response = getattr(client, operation)(
                QueueUrl=receipt.url,
                Entries=[entry.as_sent(number) for number, entry in numbered.items()],
            )
        except (BotoCoreError, ClientError) as exc:
            maybe_done = not isinstance(exc, _NOT_DONE)
            self._log_silence(receipt.queue, exc)
        else:
            self._log_silence(receipt.queue, None)
        if failures := failures_of(response):
            logger.info("%s on queue %s: %s", operation, receipt.queue, failures)
        if maybe_done:
            self._note_silence(numbered.values(), asked_at)
        return {
            int(number): self._note(numbered[number], answer, asked_at)
            for number, answer in answers_of(response, numbered).items()
        }

    def _log_silence(self, queue: str, error: Exception | None) -> None:
        """Log that calls for a queue stopped being answered, or are answered again; each once."""
        if error is None:
            if self._silent.pop(queue, None) is not None:
                logger.info("SQS answers for the leases of queue %s again", queue)
        elif self._silent.setdefault(queue, error) is error:
            logger.warning("SQS does not answer for the leases of queue %s: %s", queue, error)

    def _note_silence(self, entries: Iterable[_Entry], asked_at: float) -> None:
        """Assume the worst of a call that may have reached SQS although there was no answer.

        A message that may be visible again may have another holder: no further call is made for it.
        """
        for each in entries:
            if each.seconds is not None:
                self.receipts.maybe_moved(each.receipt.handle, asked_at + each.seconds)

    def _note(self, entry: _Entry, answer: Answer, asked_at: float) -> Answer:
        """Update the handle; an extension that was granted too late proves nothing."""
        handle, seconds = entry.receipt.handle, entry.seconds
        if answer is Answer.UNKNOWN:
            return answer
        if answer is Answer.LOST or not seconds:
            self.receipts.forget(handle)
            return answer
        if self._clock.now() >= entry.receipt.good_until:
            self.receipts.forget(handle)
            return Answer.UNKNOWN
        self.receipts.moved(handle, asked_at + seconds)
        return answer


def _tens(entries: Sequence[_Entry | Answer]) -> Iterator[list[tuple[int, _Entry]]]:
    """Yield the entries to call for, with their indexes, in batches of one queue each."""
    queues: dict[str, list[tuple[int, _Entry]]] = {}
    for index, entry in enumerate(entries):
        if isinstance(entry, _Entry):
            queues.setdefault(entry.receipt.url, []).append((index, entry))
    for questions in queues.values():
        for start in range(0, len(questions), BATCH):
            yield questions[start : start + BATCH]
