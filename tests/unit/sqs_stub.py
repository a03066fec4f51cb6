"""A stub of SQS's API that answers as the service's documentation says, not as moto does."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_lease.brokers.sqs.dead import DEAD
from celery_lease.brokers.sqs.driver import SqsDriver
from celery_lease.brokers.sqs.receipts import ReceivedMessage
from celery_lease.core.delivery import Claim, Terms
from unit.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "https://sqs/1/q"


@dataclass
class Api:
    """Client and queue in one. ``fail`` gives the errors of entries by handle."""

    calls: list[tuple[str, str, list[dict[str, Any]]]] = field(default_factory=list)
    fail: dict[str, dict[str, Any]] = field(default_factory=dict)
    error: Exception | None = None
    meanwhile: Callable[[], None] = lambda: None
    attributes: dict[str, str] = field(default_factory=lambda: {"VisibilityTimeout": "600"})
    letters: list[tuple[str, Any]] = field(default_factory=list)  #: queues and what is told
    patience: list[float] = field(default_factory=list)

    def client(self, _queue: str, within: float) -> Api:
        self.patience.append(within)
        return self

    def learn(self, _channel: Any, _queue: str) -> None: ...

    def change_message_visibility_batch(self, **call: Any) -> dict[str, Any]:
        return self._batch("change", **call)

    def delete_message_batch(self, **call: Any) -> dict[str, Any]:
        return self._batch("delete", **call)

    def get_queue_url(self, QueueName: str) -> dict[str, Any]:  # noqa: N803
        if self.error:
            raise self.error
        return {"QueueUrl": f"https://sqs/1/{QueueName}"}

    def send_message(self, QueueUrl: str, MessageAttributes: Any, **_: Any) -> None:  # noqa: N803
        if self.error:
            raise self.error
        self.letters.append((QueueUrl, json.loads(MessageAttributes[DEAD]["StringValue"])))

    def get_queue_attributes(self, **_: Any) -> dict[str, Any]:
        if self.error:
            raise self.error
        return {"Attributes": self.attributes}

    def _batch(self, name: str, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        assert len(Entries) <= 10, "AWS.SimpleQueueService.TooManyEntriesInBatchRequest"
        self.calls.append((name, QueueUrl, Entries))
        self.meanwhile()
        if self.error:
            raise self.error
        answer: dict[str, list[dict[str, Any]]] = {"Successful": [], "Failed": []}
        for entry in Entries:
            failure = self.fail.get(entry["ReceiptHandle"])
            if failure:
                answer["Failed"].append({"Id": entry["Id"], **failure})
            else:
                answer["Successful"].append({"Id": entry["Id"]})
        return answer

    def sent(self, name: str) -> list[dict[str, Any]]:
        """Return the entries of all calls of a name."""
        return [entry for call, _, entries in self.calls if call == name for entry in entries]


class SqsBench:
    """A driver on the stub."""

    def __init__(self) -> None:
        self.clock, self.api = FakeClock(), Api()
        clients: Any = self.api
        self.driver = SqsDriver(self.clock, clients)
        self.driver.learn(None, "q", URL)

    def receive(
        self,
        handle: str = "h",
        *,
        seconds: float = 100.0,
        ago: float = 0.0,
        url: str = URL,
        backoff: int = 0,
        receives: int = 1,
    ) -> Claim | None:
        """Claim a message that came with a poll sent so many seconds *ago*."""
        now = self.clock.now()
        received = ReceivedMessage(
            handle=handle,
            queue="q",
            url=url,
            receives=receives,
            asked_at=now - ago,
            served_at=1_800_000_000,
            sent_ms=None,
            backoff=backoff,
            raw={
                "MessageId": "m",
                "Body": "{}",
                "Attributes": {"ApproximateReceiveCount": str(receives)},
            },
        )
        return self.driver.claim(received, Terms(seconds=seconds), now)
