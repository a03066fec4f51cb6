"""Checks of SQS queues: attributes that affect leases."""

from __future__ import annotations

import json
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from celery_lease.brokers.sqs.clients import Clients
from celery_lease.core.clock import SystemClock
from celery_lease.core.findings import Examined, Finding, error, notice, ok, warning
from celery_lease.core.offset import Offset
from celery_lease.core.words import counted, plain

if TYPE_CHECKING:
    from collections.abc import Iterator


CAP = 43200.0  #: the longest time for which SQS lets a message be held, in seconds
ANSWER_TIMEOUT = 4.0  #: seconds for one answer
#: The first lease is no longer than the queue's timeout, and the keeper comes once a second.
SHORT = 10
#: Receives that shutdowns and crashes of healthy workers may spend on one message.
ROOM = 5


def clock(case: Examined) -> Offset | None:
    """Return the difference to Amazon's clock; its answers carry whole seconds."""
    for name in case.queues[:1]:
        asked = SystemClock().wall().timestamp()
        answer = _attributes(case, name)
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        if date:
            answered = SystemClock().wall().timestamp()
            seconds = parsedate_to_datetime(date).astimezone(UTC).timestamp()
            offset = Offset.of(seconds, asked, answered)
            return Offset(offset.low, offset.high + 1)
    return None


def check(case: Examined) -> Iterator[Finding]:
    """Yield the findings about each queue."""
    if case.longest > CAP:
        yield warning(
            "sqs.twelve_hours",
            f"lease_max_duration is {plain(case.longest)} s",
            "Twelve hours after it was received SQS gives a message to others, whatever was "
            "extended.",
            "Lower lease_max_duration to 43200, and let longer tasks continue from a checkpoint.",
        )
    predefined = case.channel.predefined_queues or {}
    for name in case.queues:
        if predefined and name not in predefined:
            yield _missing(name, "is not in predefined_queues", "Add it there")
            continue
        try:
            answer = _attributes(case, name)
        except (BotoCoreError, ClientError) as exc:
            yield _unread(name, exc, predefined=bool(predefined))
        else:
            yield from _queue(case, name, answer.get("Attributes", {}))


def _attributes(case: Examined, queue: str) -> Any:
    channel = case.channel
    name, clients = channel.canonical_queue_name(queue), Clients()
    clients.learn(channel, name)
    client = clients.client(name, ANSWER_TIMEOUT)
    try:
        predefined = (channel.predefined_queues or {}).get(queue)
        url = predefined["url"] if predefined else client.get_queue_url(QueueName=name)["QueueUrl"]
        return client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
    finally:
        clients.close()


def _missing(name: str, what: str, remedy: str) -> Finding:
    why = "A worker cannot take messages of it, and with predefined_queues none creates it."
    return error("sqs.queue", f"queue {name} {what}", why, f"{remedy}, or do not consume from it.")


def _unread(name: str, exc: Exception, *, predefined: bool) -> Finding:
    if "NonExistentQueue" in str(exc) or "QueueDoesNotExist" in str(exc):
        if predefined:
            what = "does not exist at its url in predefined_queues"
            return _missing(name, what, "Create it, or correct the url")
        return notice(
            "sqs.queue",
            f"queue {name} does not exist yet",
            "The first worker creates it, with broker_transport_options['visibility_timeout'] as "
            "its timeout and without a dead-letter queue.",
            "Create it yourself, with a redrive policy.",
        )
    return warning(
        "sqs.queue",
        f"attributes of queue {name} cannot be read: {exc}",
        "The driver then takes the queue for one with a timeout of 30 s and no redrive policy.",
        "Allow sqs:GetQueueUrl and sqs:GetQueueAttributes.",
    )


def _queue(case: Examined, name: str, attributes: dict[str, str]) -> Iterator[Finding]:
    yield _visibility(case, name, int(attributes.get("VisibilityTimeout", "30")))
    yield _redrive(case, name, json.loads(attributes.get("RedrivePolicy") or "{}"))
    retention = int(attributes.get("MessageRetentionPeriod", "345600"))
    if retention < case.longest:
        yield warning(
            "sqs.retention",
            f"queue {name} keeps messages for {retention} s, leases may take "
            f"{plain(case.longest)} s",
            "SQS deletes a message that old, also while it is held.",
            "Raise MessageRetentionPeriod; 14 days are allowed.",
        )


def _visibility(case: Examined, name: str, seconds: int) -> Finding:
    check, what = "sqs.visibility_timeout", f"queue {name} has a visibility timeout of {seconds} s"
    if seconds < 1:
        return error(
            check,
            what,
            "No message of it can be held: everybody gets it at once.",
            "Raise it to 30 s or more.",
        )
    if seconds < SHORT:
        return warning(
            check,
            what,
            "A lease begins with it, and becomes the task's own a second later. A worker that is "
            "held up in that second loses what it has just received.",
            "Raise it to 30 s or more.",
        )
    if seconds > max(case.shortest_extension, 60):
        return notice(
            check,
            what,
            "A worker that is killed within a second of receiving messages leaves them hidden for "
            "that long; all others come back when their leases expire.",
            "Leave it if plain tasks need it, else lower it to 30 s.",
        )
    return ok(check, what)


def _redrive(case: Examined, name: str, policy: dict[str, Any]) -> Finding:
    most = int(policy.get("maxReceiveCount", 0))
    wanted = max((each.max_deliveries for each in case.leases), default=ROOM)
    if not most:
        return warning(
            "sqs.redrive",
            f"queue {name} has no redrive policy",
            "A worker dead-letters what it has seen lost lease_max_deliveries times. SQS records "
            "no losses: a message that kills whole workers comes back until it is too old.",
            "Give the queue a dead-letter queue and a maxReceiveCount.",
        )
    what = f"queue {name}: SQS moves a message after {counted(most, 'receive')} (maxReceiveCount)"
    if most < wanted + ROOM:
        return warning(
            "sqs.redrive",
            f"{what}; lease_max_deliveries is {wanted}",
            "SQS's count decides, and it counts orderly returns too: each stop of a worker that "
            "had the message waiting spends one.",
            f"Raise maxReceiveCount to {wanted + ROOM} or more.",
        )
    return ok("sqs.redrive", what)
