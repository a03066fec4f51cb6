"""The SQS driver's own clients against moto's server: batches, silence, and credentials."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("boto3")
pytest.importorskip("moto")

from kombu import Queue

from celery_lease import brokers
from celery_lease.brokers.sqs.driver import SqsDriver
from celery_lease.brokers.sqs.receipts import ReceivedMessage
from celery_lease.core.clock import SystemClock
from celery_lease.core.delivery import Answer, Claim, Renewal, Terms
from celery_lease.standalone.consumer import lease_consumer
from harness.moto_server import REGION, MotoServer
from harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLOCK = SystemClock()


@pytest.fixture
def moto(tmp_path: Path) -> Iterator[MotoServer]:
    """A server for one test, to be paused."""
    with MotoServer(tmp_path / "moto").start() as server:
        yield server


def make_driver(moto: MotoServer, queue: str, **options: Any) -> SqsDriver:
    """Return a driver that knows a queue, with its count of calls as ``calls``."""
    with moto.setup(queue, **options).app().connection_for_read() as connection:
        channel = connection.default_channel
        driver: Any = brokers.driver(channel)
        driver.learn(channel, queue, moto.queue_url(queue))
    driver.calls = Counter()

    def count(model: Any, **_: Any) -> None:
        driver.calls[model.name] += 1

    driver.clients.client(queue, 5.0).meta.events.register("before-call.sqs", count)
    assert isinstance(driver, SqsDriver)
    return driver


def receive(moto: MotoServer, driver: SqsDriver, queue: str) -> Claim:
    """Receive one message and claim it."""
    url = moto.queue_url(queue)
    (message,) = moto.client().receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    return claim(driver, queue, url, message)


def claim(driver: SqsDriver, queue: str, url: str, message: dict[str, Any]) -> Claim:
    """Claim a message that was received just now."""
    received = ReceivedMessage(
        handle=message["ReceiptHandle"],
        queue=queue,
        url=url,
        receives=1,
        asked_at=CLOCK.now(),
        served_at=1_800_000_000,
        sent_ms=None,
    )
    claimed = driver.claim(received, Terms(seconds=20.0), CLOCK.now())
    assert claimed is not None
    return claimed


def fill(moto: MotoServer, queue: str, count: int) -> None:
    """Send some messages."""
    for number in range(count):
        moto.client().send_message(QueueUrl=moto.queue_url(queue), MessageBody=str(number))


def test_leases_are_extended_settled_and_handed_back_in_tens(moto: MotoServer) -> None:
    """Twenty-five leases are three calls, and SQS does what they say."""
    queue = moto.fresh_queue()
    driver = make_driver(moto, queue)
    fill(moto, queue, 25)
    tags = [receive(moto, driver, queue).tag for _ in range(25)]
    renewals = [Renewal(tag, 100.0) for tag in tags]
    assert driver.extend(renewals, timeout=5.0) == [Answer.HELD] * 25
    assert driver.calls["ChangeMessageVisibilityBatch"] == 3  # type: ignore[attr-defined]
    assert driver.complete(tags[:12]) == [Answer.HELD] * 12
    assert driver.requeue(tags[12:]) == [Answer.HELD] * 13
    assert driver.calls["DeleteMessageBatch"] == 2  # type: ignore[attr-defined]
    assert moto.counts(queue) == (13, 0)


def test_calls_of_many_leases_are_under_way_at_the_same_time(moto: MotoServer) -> None:
    """A hundred round trips one after the other would be as long as some leases."""
    queue = moto.fresh_queue()
    driver = make_driver(moto, queue)
    entries = [{"Id": str(number), "MessageBody": "{}"} for number in range(10)]
    client, url, tags = moto.client(), moto.queue_url(queue), []
    for _ in range(12):
        client.send_message_batch(QueueUrl=url, Entries=entries)
        got = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
        tags += [claim(driver, queue, url, message).tag for message in got]
    under_way: list[int] = []
    events = driver.clients.client(queue, 5.0).meta.events
    events.register("before-call.sqs", lambda **_: under_way.append(1))
    events.register("after-call.sqs", lambda **_: under_way.append(-1))
    renewals = [Renewal(tag, 600.0) for tag in tags]
    assert driver.extend(renewals, timeout=60.0) == [Answer.HELD] * 120
    assert driver.calls["ChangeMessageVisibilityBatch"] == 12  # type: ignore[attr-defined]
    assert max(itertools.accumulate(under_way)) > 1
    assert moto.counts(queue) == (0, 120)


def test_a_plain_consumer_leases_what_it_receives(moto: MotoServer) -> None:
    """Without an event loop kombu polls with a blocking client; leases are the same."""
    queue = moto.fresh_queue(VisibilityTimeout="2")
    got: list[Any] = []
    with moto.setup(queue).app().connection_for_read() as connection:
        leases = lease_consumer(connection.default_channel, seconds=3.0)
        connection.default_channel.basic_publish(
            connection.default_channel.prepare_message("{}"), "", queue
        )
        with connection.Consumer([Queue(queue)], on_message=got.append, accept=["json"]):
            connection.drain_events(timeout=10)
            lease = leases.lease_of(got[0])
            lease.extend_visibility(60.0)
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=4)
            assert moto.counts(queue) == (0, 1), "longer than the queue hides a message"
            got[0].ack()
    assert moto.counts(queue) == (0, 0)
    assert len(got) == 1
    assert lease.fencing_token > 0


def test_a_paused_service_is_waited_for_no_longer_than_a_lease_has(moto: MotoServer) -> None:
    """No answer is neither a renewal nor a loss, and the next question is answered."""
    queue = moto.fresh_queue()
    driver = make_driver(moto, queue)
    fill(moto, queue, 1)
    tag = receive(moto, driver, queue).tag
    moto.stop()
    begin = time.monotonic()
    assert driver.extend([Renewal(tag, 20.0)], timeout=1.0) == [Answer.UNKNOWN]
    assert time.monotonic() - begin < 4.0
    moto.cont()
    eventually(lambda: driver.extend([Renewal(tag, 20.0)], timeout=5.0) == [Answer.HELD])


def test_a_role_is_assumed_for_the_drivers_own_client(
    moto: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its credentials renew themselves in the thread that signs, not in kombu's channel."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", moto.url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    queue = moto.fresh_queue()
    role = "arn:aws:iam::123456789012:role/worker"
    entry = {"url": moto.queue_url(queue), "region": REGION}
    driver = make_driver(moto, queue, predefined_queues={queue: entry}, sts_role_arn=role)
    fill(moto, queue, 1)
    tag = receive(moto, driver, queue).tag
    assert driver.extend([Renewal(tag, 20.0)], timeout=5.0) == [Answer.HELD]
    credentials: Any = driver.clients.client(queue, 5.0)._request_signer._credentials
    assert credentials.method == "sts-assume-role"
    assert not credentials.refresh_needed()
    assert credentials.refresh_needed(refresh_in=3600)
