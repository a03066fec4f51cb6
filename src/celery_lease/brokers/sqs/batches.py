"""Batch calls of SQS: ten entries to a call, and the meaning of their answers.

Errors of the client library stop here: without a clear answer the result is
:attr:`Answer.UNKNOWN`. Nothing is sent again under a receipt handle that may be stale.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
)

from celery_lease.brokers.sqs.answers import answers_of, failures_of
from celery_lease.brokers.sqs.calls import do_all
from celery_lease.core.delivery import Answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from celery_lease.brokers.sqs.clients import Clients
    from celery_lease.brokers.sqs.receipts import Receipt, Receipts
    from celery_lease.core.clock import Clock

logger = logging.getLogger(__name__)

#: Entries in one call, SQS's limit.
BATCH = 10

#: After these errors the call had no effect; after any other error it may have had.
_NOT_DONE = (ClientError, ConnectTimeoutError, EndpointConnectionError)

CHANGE, DELETE = "change_message_visibility_batch", "delete_message_batch"


@dataclass(frozen=True, slots=True)
class Entry:
    """A change of one message."""

    receipt: Receipt
    seconds: int | None = None  #: the new visibility timeout; None: delete it

    def as_sent(self, number: str) -> dict[str, Any]:
        entry: dict[str, Any] = {"Id": number, "ReceiptHandle": self.receipt.handle}
        if self.seconds is not None:
            entry["VisibilityTimeout"] = self.seconds
        return entry


class Batches:
    """Calls for the messages of one driver, whose receipt handles they keep up to date."""

    def __init__(self, clients: Clients, receipts: Receipts, clock: Clock) -> None:
        self._clients = clients
        self._receipts = receipts
        self._clock = clock
        #: Queues whose last call failed, with the error. From any thread: each step is atomic.
        self._silent: dict[str, Exception] = {}

    def ask(
        self, operation: str, entries: Sequence[Entry | Answer], timeout: float
    ) -> list[Answer]:
        """Call in tens, by queue, several at once; calls that would be too late are unanswered."""
        answers = [each if isinstance(each, Answer) else Answer.UNKNOWN for each in entries]
        give_up_at = self._clock.now() + timeout
        silent: set[str] = set()  # shared by the threads, like the answers: each step is atomic

        def ask_for(batch: list[tuple[int, Entry]]) -> None:
            url = batch[0][1].receipt.url
            left = give_up_at - self._clock.now()
            if url in silent or left <= 0:
                return
            for index, answer in self._ask_ten(operation, batch, left).items():
                answers[index] = answer
            if all(answers[index] is Answer.UNKNOWN for index, _ in batch):
                silent.add(url)

        do_all(ask_for, _tens(entries))
        return answers

    def _ask_ten(
        self, operation: str, batch: list[tuple[int, Entry]], timeout: float
    ) -> dict[int, Answer]:
        receipt = batch[0][1].receipt
        asked_at = self._clock.now()
        numbered = {str(index): entry for index, entry in batch}
        response: dict[str, Any] = {}
        maybe_done = False
        try:
            client = self._clients.client(receipt.queue, timeout)
            response = getattr(client, operation)(
                QueueUrl=receipt.url,
                Entries=[entry.as_sent(number) for number, entry in numbered.items()],
            )
        except (BotoCoreError, ClientError) as exc:
            maybe_done = not isinstance(exc, _NOT_DONE)
            self.log_silence(receipt.queue, exc)
        else:
            self.log_silence(receipt.queue, None)
        if failures := failures_of(response):
            logger.info("%s on queue %s: %s", operation, receipt.queue, failures)
        if maybe_done:
            self._note_silence(numbered.values(), asked_at)
        return {
            int(number): self._note(numbered[number], answer, asked_at)
            for number, answer in answers_of(response, numbered).items()
        }

    def log_silence(self, queue: str, error: Exception | None) -> None:
        """Log that calls for a queue stopped being answered, or are answered again; each once."""
        if error is None:
            if self._silent.pop(queue, None) is not None:
                logger.info("SQS answers for the leases of queue %s again", queue)
        elif self._silent.setdefault(queue, error) is error:
            logger.warning("SQS does not answer for the leases of queue %s: %s", queue, error)

    def _note_silence(self, entries: Iterable[Entry], asked_at: float) -> None:
        """Assume the worst of a call that may have reached SQS although there was no answer.

        A message that may be visible again may have another holder: no further call is made for it.
        """
        for each in entries:
            if each.seconds is not None:
                self._receipts.maybe_moved(each.receipt.handle, asked_at + each.seconds)

    def _note(self, entry: Entry, answer: Answer, asked_at: float) -> Answer:
        """Update the handle; an extension that was granted too late proves nothing."""
        handle, seconds = entry.receipt.handle, entry.seconds
        if answer is Answer.UNKNOWN:
            return answer
        if answer is Answer.LOST or not seconds:
            self._receipts.forget(handle)
            return answer
        if self._clock.now() >= entry.receipt.good_until:
            self._receipts.forget(handle)
            return Answer.UNKNOWN
        self._receipts.moved(handle, asked_at + seconds)
        return answer


def _tens(entries: Sequence[Entry | Answer]) -> Iterator[list[tuple[int, Entry]]]:
    """Yield the entries to call for, with their indexes, in batches of one queue each."""
    queues: dict[str, list[tuple[int, Entry]]] = {}
    for index, entry in enumerate(entries):
        if isinstance(entry, Entry):
            queues.setdefault(entry.receipt.url, []).append((index, entry))
    for questions in queues.values():
        for start in range(0, len(questions), BATCH):
            yield questions[start : start + BATCH]
