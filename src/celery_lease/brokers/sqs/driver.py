"""The lease calls of SQS: entries of batches, ten to a call, and what their answers mean.

Nothing here decides, but for one thing that SQS leaves to its clients: nothing is sent under a
receipt handle that may be stale. Errors of the client library stop in this module: whatever was
not answered clearly is :attr:`Answer.UNKNOWN`.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
)

from celery_lease.brokers.losses import Losses
from celery_lease.brokers.sqs import dead
from celery_lease.brokers.sqs.answers import answers_of, failures_of
from celery_lease.brokers.sqs.clients import Clients
from celery_lease.brokers.sqs.dead import SqsDeadLetters
from celery_lease.brokers.sqs.fencing import fencing_token
from celery_lease.brokers.sqs.queues import Queue, Queues
from celery_lease.brokers.sqs.receipts import Receipt, Receipts
from celery_lease.core.clock import SystemClock
from celery_lease.core.delivery import Answer, Capabilities, Claim, Reaped, Renewal, Terms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from celery_lease.core.clock import Clock

logger = logging.getLogger(__name__)

#: Entries in one call, SQS's limit.
BATCH = 10
#: Longest wait for all answers to one question from the worker's main thread, in seconds.
ANSWER_TIMEOUT = 5.0
#: Seconds after its receipt from which SQS hides a message no longer, whatever was asked.
LONGEST = 43_200
#: Seconds before that at which a lease ends, so that its task can be told and clocks may differ.
MARGIN = 60
#: Seconds between two looks at the queues' attributes.
QUEUES_INTERVAL = 300.0

#: After these nothing was done; after any other error it may have been.
_NOT_DONE = (ClientError, ConnectTimeoutError, EndpointConnectionError)

_CHANGE, _DELETE = "change_message_visibility_batch", "delete_message_batch"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message as it came, before it is claimed."""

    handle: str
    queue: str  #: its queue's name at SQS
    url: str
    receives: int  #: this one included
    asked_at: float  #: clock reading before the poll was sent
    served_at: int  #: when SQS answered, in seconds since 1970
    sent_ms: int | None  #: when the message was sent, in milliseconds since 1970, if known
    backoff: int = 0
    raw: Mapping[str, Any] = field(default_factory=dict)  #: the message as SQS gave it


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is asked of one message."""

    receipt: Receipt
    seconds: int | None = None  #: the new visibility timeout; None deletes

    def as_sent(self, number: str) -> dict[str, Any]:
        entry: dict[str, Any] = {"Id": number, "ReceiptHandle": self.receipt.handle}
        if self.seconds is not None:
            entry["VisibilityTimeout"] = self.seconds
        return entry


class SqsDriver:
    """Leases on the queues of one connection. Thread-safe; not for use across a fork."""

    capabilities = Capabilities(
        extends=True, fences=False, confirms=False, granularity=1.0, tells_losses=False, buries=True
    )

    def __init__(self, clock: Clock, clients: Clients | None = None, channel: Any = None) -> None:
        """Of *channel* only an operator's command has need, for queues that nobody consumes."""
        self.clients = clients or Clients()
        self._losses = Losses()
        self._copied: set[str] = set()  # tags of what is in a dead-letter queue, but not deleted
        self._letters = SqsDeadLetters(self.clients, channel)
        self.queues = Queues(self.clients)
        self.receipts = Receipts()
        self._clock = clock
        self._silent: set[str] = set()  # queues whose last call was not answered
        self._queues_read_at = clock.now()

    def learn(self, channel: Any, queue: str, url: str) -> Queue:
        """Find out how to reach a *queue* that will be consumed, and its attributes."""
        self.clients.learn(channel, queue)
        return self.queues.learn(queue, url)

    def claim(self, arrival: Arrival, terms: Terms, now: float) -> Claim | None:
        """Take a received message under a lease; None if it may be somebody else's by now."""
        queue = self.queues.get(arrival.url)
        good_until = arrival.asked_at + queue.visibility
        if good_until <= now:
            return None
        receipt = Receipt(
            arrival.handle, arrival.queue, arrival.url, good_until, arrival.backoff, arrival.raw
        )
        self.receipts.add(receipt)
        return Claim(
            tag=arrival.handle,
            token=fencing_token(arrival.served_at, arrival.sent_ms, arrival.receives),
            queue=arrival.queue,
            deliveries=arrival.receives,
            losses=self._losses.delivered(
                arrival.handle, arrival.raw.get("MessageId", ""), again=arrival.receives > 1
            ),
            asked_at=now,
            seconds=min(terms.seconds, good_until - now),
            provisional=True,
            limit=arrival.asked_at + LONGEST - MARGIN - now,
            delivery_limit=queue.most_receives,
        )

    def extend(
        self, renewals: Sequence[Renewal], *, timeout: float = ANSWER_TIMEOUT
    ) -> list[Answer]:
        """Move expiries, rounded up to whole seconds; what is late cannot be told from taken."""
        asked_at = self._clock.now()
        entries: list[_Entry | Answer] = []
        for each in renewals:
            receipt = self.receipts.good(each.tag, asked_at)
            if receipt is None:
                entries.append(Answer.UNKNOWN if each.late else Answer.LOST)
            else:
                entries.append(_Entry(receipt, min(math.ceil(each.seconds), LONGEST)))
        return self._ask(_CHANGE, entries, timeout)

    def complete(self, tags: Sequence[str]) -> list[Answer]:
        """Delete messages."""
        return self._ask(_DELETE, [self._entry(tag) for tag in tags], ANSWER_TIMEOUT)

    def hand_back(
        self, tags: Sequence[str], *, orderly: bool = True, front: bool = True
    ) -> list[Answer]:
        """Make messages visible at once; SQS neither keeps an order nor asks why.

        Those that are rejected rather than handed back, not to the *front*, wait as long as
        kombu's backoff policy for their task says.
        """
        if not orderly:
            for tag in tags:
                self._losses.lost(tag)
        return self._ask(_CHANGE, [self._entry(tag, front=front) for tag in tags], ANSWER_TIMEOUT)

    def release(self, queue: str, url: str, handles: Sequence[str]) -> None:
        """Make messages visible that were received for nobody, right after their arrival."""
        until = self._clock.now() + self.queues.get(url).visibility
        for handle in handles:
            self.receipts.add(Receipt(handle, queue, url, until))
        answers = self.hand_back(handles)
        if Answer.UNKNOWN in answers:
            logger.warning(
                "%d messages of queue %s stay invisible for its visibility timeout",
                answers.count(Answer.UNKNOWN),
                queue,
            )

    def return_unclaimed(self, attempts: Sequence[Any]) -> list[Answer]:
        """Do nothing: what was not claimed becomes visible by itself."""
        return [Answer.HELD] * len(attempts)

    def reap(self, *, limit: int) -> list[Reaped]:
        """Return nothing: expired messages are visible by themselves. Forget stale handles."""
        del limit
        now = self._clock.now()
        self.receipts.sweep(now)
        if now - self._queues_read_at >= QUEUES_INTERVAL:
            self._queues_read_at = now
            self.queues.refresh()
        return []

    def bury(self, tag: str, queue: str) -> Answer:
        """Copy a message to a dead-letter queue, which is made if need be, and delete it then."""
        receipt = self.receipts.good(tag, self._clock.now())
        if receipt is None:
            return Answer.LOST
        if tag not in self._copied:
            try:
                client = self.clients.client(receipt.queue, ANSWER_TIMEOUT)
                dead.copy(client, receipt, queue, self._losses.of(tag), self._clock.wall())
            except (BotoCoreError, ClientError) as exc:
                self._tell(receipt.queue, exc)
                return Answer.UNKNOWN
            self._copied.add(tag)
        (answer,) = self.complete([tag])
        if answer is not Answer.UNKNOWN:
            self._copied.discard(tag)
        return answer

    def dead_letters(self) -> SqsDeadLetters:
        """Return the dead-letter queues; what is looked at there is hidden until :meth:`close`."""
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
        """Ask in tens, by queue; what could not be asked in time is unanswered."""
        answers = [each if isinstance(each, Answer) else Answer.UNKNOWN for each in entries]
        give_up_at = self._clock.now() + timeout
        silent: set[str] = set()
        for batch in _tens(entries):
            url = batch[0][1].receipt.url
            left = give_up_at - self._clock.now()
            if url in silent or left <= 0:
                continue
            for index, answer in self._ask_ten(operation, batch, left).items():
                answers[index] = answer
            if all(answers[index] is Answer.UNKNOWN for index, _ in batch):
                silent.add(url)
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
            self._tell(receipt.queue, exc)
        else:
            self._tell(receipt.queue, None)
        if failures := failures_of(response):
            logger.info("%s on queue %s: %s", operation, receipt.queue, failures)
        if maybe_done:
            self._note_silence(numbered.values(), asked_at)
        return {
            int(number): self._note(numbered[number], answer, asked_at)
            for number, answer in answers_of(response, numbered).items()
        }

    def _tell(self, queue: str, error: Exception | None) -> None:
        """Log that a queue's calls are not answered, or are again; each time only once."""
        if error is None and queue in self._silent:
            self._silent.discard(queue)
            logger.info("SQS answers for the leases of queue %s again", queue)
        elif error is not None and queue not in self._silent:
            self._silent.add(queue)
            logger.warning("SQS does not answer for the leases of queue %s: %s", queue, error)

    def _note_silence(self, entries: Iterable[_Entry], asked_at: float) -> None:
        """Take the worst from a call that may have reached SQS although no answer came.

        What may be visible again may be somebody else's: it is not asked for once more.
        """
        for each in entries:
            if each.seconds is not None:
                self.receipts.maybe_moved(each.receipt.handle, asked_at + each.seconds)

    def _note(self, entry: _Entry, answer: Answer, asked_at: float) -> Answer:
        """Keep the book of handles; an extension that was granted too late proves nothing."""
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
    """Yield what is to be asked, with its place, in batches of one queue each."""
    queues: dict[str, list[tuple[int, _Entry]]] = {}
    for index, entry in enumerate(entries):
        if isinstance(entry, _Entry):
            queues.setdefault(entry.receipt.url, []).append((index, entry))
    for questions in queues.values():
        for start in range(0, len(questions), BATCH):
            yield questions[start : start + BATCH]


def connect(channel: Any, clock: Clock | None = None) -> SqsDriver:
    """Make a driver; of a kombu *channel* it learns queue by queue, as they are consumed."""
    return SqsDriver(clock or SystemClock(), channel=channel)
