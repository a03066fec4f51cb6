"""Dead letters on SQS: copies in a queue of their own, with an attribute for their history.

For queues without a redrive policy; with one, SQS moves messages by itself. Otherwise SQS cannot
move a message, so a dead letter is a copy that is sent before the message is deleted: without an
answer there may be two, but there is never none.

SQS shows a message only by a receipt. So a letter that was read is hidden from all others for
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

#: Attribute of a dead letter: its origin, the time of its move, and its losses.
DEAD = "celery_lease_dead"
#: Seconds that a letter is kept: the most that SQS allows.
KEPT = 14 * 24 * 3600
#: Seconds for which a letter that was read is hidden from others.
HIDDEN = 120
#: Longest wait for the answer to one call, in seconds.
ANSWER_TIMEOUT = 4.0
#: Bytes that all regions and servers take as one message, and the part of them that is reserved for
#: the fixed fields of a letter.
LONGEST, BESIDE = 262_144, 4096
_MISSING = ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")


def copy(client: Any, receipt: Receipt, queue: str, known: Mapping[str, Any], at: datetime) -> None:
    """Send a copy of a message to a dead-letter *queue*, which is created if it is missing.

    The worker's *known* facts, ``losses``, ``about`` and ``history``, go with it.

    Raises:
        BotoCoreError, ClientError: There was no answer; the copy may or may not be there.
    """
    raw = receipt.raw
    attributes = raw.get("Attributes") or {}
    facts = {
        "queue": receipt.queue,
        "url": receipt.url,
        "group": attributes.get("MessageGroupId"),
        "deliveries": int(attributes.get("ApproximateReceiveCount", 0)),
        "at": at.timestamp(),
        **known,
    }
    target = _name(queue)
    url = _made(client, target)
    attribute = {"DataType": "String", "StringValue": json.dumps(facts)}
    _send(client, url, raw, {**(raw.get("MessageAttributes") or {}), DEAD: attribute}, facts)


def room(receipt: Receipt) -> int:
    """Return the bytes that are free for a history beside a message."""
    attributes = receipt.raw.get("MessageAttributes") or {}
    taken = len(receipt.raw["Body"].encode()) + len(json.dumps(attributes, default=str))
    return LONGEST - BESIDE - taken


class SqsDeadLetters:
    """The dead-letter queues of one account; implements :class:`~.core.dead.DeadLetters`."""

    def __init__(self, clients: Clients, channel: Any) -> None:
        """*channel* is a live kombu channel, for the access to queues that have no consumer."""
        self._clients, self._channel = clients, channel
        self._hidden: dict[str, tuple[str, str]] = {}  # name and URL of the queue, by handle

    def queues(self, likely: Sequence[str]) -> list[str]:
        return [queue for queue in likely if self._length(queue)]

    def letters(self, queue: str) -> Iterator[DeadLetter]:
        """Yield the dead letters of a *queue*, the oldest first, as far as SQS shows them now."""
        found = [letter for raw in self._receive(queue) if (letter := _letter(queue, raw))]
        yield from sorted(found, key=lambda letter: letter.died_at or 0.0)

    def retry(self, letter: DeadLetter) -> bool:
        raw = json.loads(letter.text)
        if raw["ReceiptHandle"] not in self._hidden:
            return False
        attributes = dict(raw["MessageAttributes"])
        facts = json.loads(attributes.pop(DEAD)["StringValue"])
        _send(self._client(facts["queue"]), facts["url"], raw, attributes, facts)
        return self._delete(raw["ReceiptHandle"])

    def purge(self, letter: DeadLetter) -> bool:
        return self._delete(json.loads(letter.text)["ReceiptHandle"])

    def close(self) -> None:
        """Show the letters that were read, and not replayed or discarded, to others again."""
        while self._hidden:
            handle, (name, url) = self._hidden.popitem()
            with suppress(BotoCoreError, ClientError):  # then its timeout passes
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
        """Return a queue's name at SQS and its URL; "" for the URL if there is no such queue."""
        prefix = self._channel.queue_name_prefix
        name = _name(queue if queue.startswith(prefix) else prefix + queue)
        return name, _url_of(self._client(name), name)

    def _client(self, name: str) -> Any:
        """Return a client for a queue; if it is not predefined, the client of a predefined one."""
        try:
            self._clients.learn(self._channel, name)
        except UndefinedQueueException:
            name = next(iter(self._channel.predefined_queues))
            self._clients.learn(self._channel, name)
        return self._clients.client(name, ANSWER_TIMEOUT)


def _name(queue: str) -> str:
    """Return a queue's name at SQS: without dots, as kombu converts it."""
    return str(Channel.entity_name(None, queue))  # type: ignore[arg-type]


def _url_of(client: Any, name: str) -> str:
    """Return the URL of a queue; "": there is no such queue."""
    try:
        return str(client.get_queue_url(QueueName=name)["QueueUrl"])
    except ClientError as exc:
        if exc.response["Error"]["Code"] not in _MISSING:
            raise
    return ""


def _made(client: Any, name: str) -> str:
    """Return the URL of a queue, which is created if it is missing."""
    if url := _url_of(client, name):
        return url
    attributes = {"MessageRetentionPeriod": str(KEPT)}
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    return str(client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])


def _send(
    client: Any,
    url: str,
    raw: Mapping[str, Any],
    attributes: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> None:
    ordered: dict[str, str] = {}
    if url.endswith(".fifo"):
        group = facts.get("group") or "default"
        ordered = {"MessageGroupId": group, "MessageDeduplicationId": str(uuid.uuid4())}
    client.send_message(
        QueueUrl=url, MessageBody=raw["Body"], MessageAttributes=dict(attributes), **ordered
    )


def _letter(queue: str, raw: Mapping[str, Any]) -> DeadLetter | None:
    """Parse a message; None if it is no dead letter of celery-lease."""
    try:
        facts = json.loads(raw["MessageAttributes"][DEAD]["StringValue"])
        payload = _payload(raw["Body"])
        kept = {key: raw[key] for key in ("Body", "ReceiptHandle", "MessageAttributes")}
        return DeadLetter.of(
            queue,
            facts,
            payload.get("headers") or {},
            key=facts["url"],
            body=body_of(payload),
            text=json.dumps(kept).encode(),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _payload(body: str) -> dict[str, Any]:
    """Decode a body; kombu's default is Base64."""
    with suppress(binascii.Error, ValueError):
        body = base64.b64decode(body, validate=True).decode()
    payload: dict[str, Any] = json.loads(body)
    return payload
