"""Reads the attributes of queues that leases need: visibility timeout and redrive policy."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from celery_lease.core.words import counted

if TYPE_CHECKING:
    from celery_lease.brokers.sqs.clients import Clients

logger = logging.getLogger(__name__)

#: Visibility timeout of a queue that was created without one; the guess if it cannot be read.
USUAL_VISIBILITY = 30
#: Longest wait for a queue's attributes, in seconds.
ANSWER_TIMEOUT = 5.0

_ATTRIBUTES = ["VisibilityTimeout", "RedrivePolicy"]


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue's attributes, as last read."""

    visibility: int = USUAL_VISIBILITY  #: in seconds; the first lease of a message is no longer
    most_receives: int | None = None  #: SQS then moves a message to the dead-letter queue


class Queues:
    """The attributes of all queues in use, by URL. Written by one thread at a time, read by any."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._names: dict[str, str] = {}
        self._known: dict[str, Queue] = {}

    def learn(self, name: str, url: str) -> Queue:
        """Read and return a queue's attributes; log those that limit leases."""
        self._names[url] = name
        before, queue = self._known.get(url), self._read(name, url)
        self._known[url] = queue
        if before != queue:
            _log_limits(name, queue)
        return queue

    def get(self, url: str) -> Queue:
        """Return a queue's attributes; cautious guesses if they are unknown."""
        return self._known.get(url, Queue())

    def refresh(self) -> None:
        """Read all attributes again: they may change at any time."""
        for url, name in list(self._names.items()):
            self.learn(name, url)

    def _read(self, name: str, url: str) -> Queue:
        try:
            client = self._clients.client(name, ANSWER_TIMEOUT)
            answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=_ATTRIBUTES)
        except (BotoCoreError, ClientError) as exc:
            logger.warning("attributes of queue %s not read: %s", name, exc)
            return self.get(url)
        return _queue(answer.get("Attributes", {}))


def _queue(attributes: dict[str, Any]) -> Queue:
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    most = policy.get("maxReceiveCount")
    return Queue(
        int(attributes.get("VisibilityTimeout", USUAL_VISIBILITY)),
        None if most is None else int(most),
    )


def _log_limits(name: str, queue: Queue) -> None:
    if queue.most_receives is not None:
        logger.info(
            "queue %s has a dead-letter queue at SQS, after %s: that one decides, not "
            "lease_max_deliveries",
            name,
            counted(queue.most_receives, "receive"),
        )
    if queue.visibility < 1:
        logger.error(
            "queue %s has a visibility timeout of 0: no message of it can be held; raise it", name
        )
