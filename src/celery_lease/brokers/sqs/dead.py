"""Dead letters on SQS: messages in a queue of their own, with an attribute of what became of them.

For queues without a redrive policy; where there is one, SQS moves messages by itself. SQS moves
nothing for others, so a letter is a copy that is sent before the message is deleted: if that is
not answered it may be there twice, but never not at all.

SQS shows a message only by giving it out. What is looked at is hidden from all others for
:data:`HIDDEN` seconds, or until :meth:`SqsDeadLetters.close`.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError
from kombu.transport.SQS import Channel, UndefinedQueueException

from celery_lease.brokers.payloads import body_of
from celery_lease.core.dead import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from celery_lease.brokers.sqs.clients import Clients
    from celery_lease.brokers.sqs.receipts import Receipt

#: The attribute of a letter that says where it came from, since when it is dead, and its losses.
DEAD = "celery_lease_dead"
#: Seconds that a letter waits for somebody to look at it: the longest that SQS keeps anything.
KEPT = 14 * 24 * 3600
#: Seconds for which a letter that somebody looks at is hidden from others.
HIDDEN = 120
#: Longest wait for the answer to one call, in seconds.
PATIENCE = 4.0
_MISSING = ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")


def copy(client: Any, receipt: Receipt, queue: str, losses: int, at: datetime) -> None:
    """Send a copy of a message to a dead-letter *queue*, which is made if there is none.

    Raises:
        BotoCoreError, ClientError: It was not answered; the copy may or may not be there.
    """
    raw = receipt.raw
    attributes = raw.get("Attributes") or {}
    told = {
        "queue": receipt.queue,
        "url": receipt.url,
        "group": attributes.get("MessageGroupId"),
        "deliveries": int(attributes.get("ApproximateReceiveCount", 0)),
        "losses": losses,
        "at": at.timestamp(),
    }
    target = _name(queue)
    url = _made(client, target)
    attribute = {"DataType": "String", "StringValue": json.dumps(told)}
    _send(client, url, raw, {**(raw.get("MessageAttributes") or {}), DEAD: attribute}, told)


class SqsDeadLetters:
    """The dead-letter queues of one account; implements :class:`~.core.dead.DeadLetters`."""

    def __init__(self, clients: Clients, channel: Any) -> None:
        """*channel* is a live kombu one, for its way to reach queues that nobody consumes."""
        self._clients, self._channel = clients, channel
        self._hidden: dict[str, tuple[str, str]] = {}  # name and URL of the queue, by handle

    def queues(self, likely: Sequence[str]) -> list[str]:
        """Return those of the *likely* queues that hold something."""
        return [queue for queue in likely if self._length(queue)]

    def letters(self, queue: str) -> Iterator[DeadLetter]:
        """Yield what lies in a *queue*, the oldest first, as far as SQS shows it at this time."""
        found = [letter for raw in self._receive(queue) if (letter := _letter(queue, raw))]
        yield from sorted(found, key=lambda letter: letter.died_at or 0.0)

    def retry(self, letter: DeadLetter) -> bool:
        """Send a letter back to the queue it came from; False: it is not there any more."""
        raw = json.loads(letter.text)
        if raw["ReceiptHandle"] not in self._hidden:
            return False
        attributes = dict(raw["MessageAttributes"])
        told = json.loads(attributes.pop(DEAD)["StringValue"])
        _send(self._client(told["queue"]), told["url"], raw, attributes, told)
        return self._delete(raw["ReceiptHandle"])

    def purge(self, letter: DeadLetter) -> bool:
        """Throw a letter away; False: it is not there any more."""
        return self._delete(json.loads(letter.text)["ReceiptHandle"])

    def close(self) -> None:
        """Show to others what was looked at and is still there."""
        while self._hidden:
            handle, (name, url) = self._hidden.popitem()
            with suppress(BotoCoreError, ClientError):  # then it shows itself
                self._client(name).change_message_visibility(
                    QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0
                )

    def _receive(self, queue: str) -> Iterator[Mapping[str, Any]]:
        name, url = self._find(queue)
        while url:
            answer = self._client(name).receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                VisibilityTimeout=HIDDEN,
                WaitTimeSeconds=1,
                MessageAttributeNames=["All"],
            )
            for raw in answer.get("Messages") or ():
                self._hidden[raw["ReceiptHandle"]] = name, url
                yield raw
            if not answer.get("Messages"):
                return

    def _delete(self, handle: str) -> bool:
        name, url = self._hidden.pop(handle, ("", ""))
        if url:
            self._client(name).delete_message(QueueUrl=url, ReceiptHandle=handle)
        return bool(url)

    def _length(self, queue: str) -> int:
        name, url = self._find(queue)
        if not url:
            return 0
        wanted = "ApproximateNumberOfMessages"
        answer = self._client(name).get_queue_attributes(QueueUrl=url, AttributeNames=[wanted])
        return int(answer["Attributes"][wanted])

    def _find(self, queue: str) -> tuple[str, str]:
        """Return a queue's name at SQS and its URL; an empty one if there is no such queue."""
        prefix = self._channel.queue_name_prefix
        name = _name(queue if queue.startswith(prefix) else prefix + queue)
        try:
            return name, str(self._client(name).get_queue_url(QueueName=name)["QueueUrl"])
        except ClientError as exc:
            if exc.response["Error"]["Code"] not in _MISSING:
                raise
            return name, ""

    def _client(self, name: str) -> Any:
        """Return a client for a queue; one that is not predefined is reached as the others are."""
        try:
            self._clients.learn(self._channel, name)
        except UndefinedQueueException:
            name = next(iter(self._channel.predefined_queues))
            self._clients.learn(self._channel, name)
        return self._clients.client(name, PATIENCE)


def _name(queue: str) -> str:
    """Return a queue's name as SQS has it: no dots, as kombu does it."""
    return str(Channel.entity_name(None, queue))  # type: ignore[arg-type]


def _made(client: Any, name: str) -> str:
    """Return the URL of a queue, which is made if there is none."""
    try:
        return str(client.get_queue_url(QueueName=name)["QueueUrl"])
    except ClientError as exc:
        if exc.response["Error"]["Code"] not in _MISSING:
            raise
    attributes = {"MessageRetentionPeriod": str(KEPT)}
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    return str(client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])


def _send(
    client: Any,
    url: str,
    raw: Mapping[str, Any],
    attributes: Mapping[str, Any],
    told: Mapping[str, Any],
) -> None:
    ordered: dict[str, str] = {}
    if url.endswith(".fifo"):
        group = told.get("group") or "default"
        ordered = {"MessageGroupId": group, "MessageDeduplicationId": str(uuid.uuid4())}
    client.send_message(
        QueueUrl=url, MessageBody=raw["Body"], MessageAttributes=dict(attributes), **ordered
    )


def _letter(queue: str, raw: Mapping[str, Any]) -> DeadLetter | None:
    """Read a message; None for one that something else put into the queue."""
    try:
        told = json.loads(raw["MessageAttributes"][DEAD]["StringValue"])
        payload = _payload(raw["Body"])
        headers = payload.get("headers") or {}
        return DeadLetter(
            task_id=str(headers.get("id") or ""),
            task=str(headers.get("task") or ""),
            queue=queue,
            origin=told["queue"],
            key=told["url"],
            died_at=told["at"],
            losses=told["losses"],
            headers=headers,
            body=body_of(payload),
            text=json.dumps(
                {key: raw[key] for key in ("Body", "ReceiptHandle", "MessageAttributes")}
            ).encode(),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _payload(body: str) -> dict[str, Any]:
    """Read a body, which kombu writes as Base64 unless told otherwise."""
    with suppress(binascii.Error, ValueError):
        body = base64.b64decode(body, validate=True).decode()
    payload: dict[str, Any] = json.loads(body)
    return payload
