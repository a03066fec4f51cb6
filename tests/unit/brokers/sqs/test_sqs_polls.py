"""What becomes of a worker's polls that SQS does not serve, on kombu's own connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("boto3")

import boto3
from botocore.stub import Stubber
from kombu.asynchronous.aws.sqs.connection import AsyncSQSConnection

from celery_lease.brokers.sqs.polls import NOT_SERVED, Poll, guard, watch

DATE = "Fri, 15 Jan 2027 08:00:00 GMT"
KEYS = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}


def sqs_client() -> Any:
    """Return a client that calls nobody."""
    return boto3.client("sqs", region_name="us-east-1", **KEYS)  # type: ignore[call-overload]


#: What this boto3 can ask for with a poll.
KNOWN = {*sqs_client().meta.service_model.operation_model("ReceiveMessage").input_shape.members}


class Response:
    """An answer as kombu hands it on."""

    reason = "as the test wants it"

    def __init__(self, status: int, body: bytes = b"") -> None:
        self.status, self._body = status, body
        self.response = SimpleNamespace(headers={}, request=SimpleNamespace(headers={}))

    def read(self) -> bytes:
        return self._body


def poll(response: Response) -> Any:
    """Let an answer arrive at a guarded connection of kombu's."""
    connection: Any = object.__new__(AsyncSQSConnection)
    connection.sqs_connection = SimpleNamespace(meta=SimpleNamespace(service_model=None))
    return guard(connection)._on_list_ready(None, [], "ReceiveMessage", response)


def error(code: str) -> bytes:
    """Return the body that comes with an error."""
    return f'{{"__type": "com.amazonaws.sqs#{code}", "message": "no"}}'.encode()


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "OverLimit"),  # 120,000 messages of the queue are in flight
        (403, "ExpiredToken"),  # temporary credentials, before they are renewed
        (403, "ExpiredTokenException"),
        (400, "RequestExpired"),
        (400, "RequestThrottled"),
        (400, "ThrottlingException"),
        (500, "InternalFailure"),
        (503, "ServiceUnavailable"),
        (504, ""),
        (599, ""),  # no answer at all
    ],
)
def test_a_poll_that_may_be_served_later_has_brought_nothing(status: int, code: str) -> None:
    """Kombu would end the worker."""
    assert poll(Response(status, error(code))) is NOT_SERVED


@pytest.mark.parametrize("code", ["AccessDenied", "QueueDoesNotExist", "InvalidClientTokenId"])
def test_a_poll_that_will_never_be_served_is_the_operators_to_hear_of(code: str) -> None:
    """Waiting would help nobody."""
    with pytest.raises(Exception, match=code):
        poll(Response(403, error(code)))


def test_a_poll_tells_when_it_was_served_if_sqs_does() -> None:
    """Fencing tokens are made of it; what is no date is none."""
    assert Poll(1.0).served({"Date": DATE}) == Poll(1.0, 1_800_000_000)
    assert Poll(1.0).served({"Date": "soon"}) == Poll(1.0).served({}) == Poll(1.0)


def test_a_poll_asks_when_a_message_was_sent() -> None:
    """In the list that this version of kombu has, once."""
    connection: Any = object.__new__(AsyncSQSConnection)
    connection.message_system_attribute_names = ["ApproximateReceiveCount"]
    guard(guard(connection))
    assert connection.message_system_attribute_names == ["ApproximateReceiveCount", "SentTimestamp"]


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (asked, name)
        for asked, name in (
            (
                {"MessageSystemAttributeNames": ["ApproximateReceiveCount"]},
                "MessageSystemAttributeNames",
            ),
            ({}, "AttributeNames"),  # kombu 5.5
            ({"MessageSystemAttributeNames": ["All"]}, None),
        )
        if {*asked} <= KNOWN
    ],
)
def test_a_blocking_poll_asks_and_tells_what_tokens_are_made_of(
    asked: dict[str, Any], name: str | None
) -> None:
    """Without an event loop, too: a retry within one second is told apart by when it was sent."""
    client = sqs_client()
    answers: list[Any] = []
    assert watch(watch(client, answers.append), answers.append) is client
    names = {"ApproximateReceiveCount", "SentTimestamp"}
    with Stubber(client) as stub:
        answer = {"ResponseMetadata": {"HTTPHeaders": {"date": DATE}}, "Messages": []}
        sent = asked if name is None else {name: sorted(names)}
        stub.add_response("receive_message", answer, {"QueueUrl": "q", **sent})
        client.receive_message(QueueUrl="q", **asked)
    assert [Poll(1.0).served(each) for each in answers] == [Poll(1.0, 1_800_000_000)]
