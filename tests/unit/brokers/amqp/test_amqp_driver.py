"""The RabbitMQ driver's answers, on a passed clock."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from amqp import spec

from celery_lease.brokers.amqp.driver import GRACE, AmqpDriver
from celery_lease.core.delivery import Answer, Renewal
from unit.amqp_channel import FakeChannel, FakeConnection, claim
from unit.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def clock() -> FakeClock:
    """Time that the test moves."""
    return FakeClock()


@pytest.fixture
def driver(clock: FakeClock) -> AmqpDriver:
    """The driver under test."""
    return AmqpDriver(clock)


@pytest.fixture
def connection() -> Iterator[FakeConnection]:
    """An open connection."""
    connection = FakeConnection()
    yield connection
    connection.close()


@pytest.fixture
def channel(connection: FakeConnection) -> FakeChannel:
    """An open channel."""
    return FakeChannel(connection)


def extend(driver: AmqpDriver, tag: str, seconds: float = 10.0, *, late: bool = False) -> Answer:
    """Ask for one extension."""
    return driver.extend([Renewal(tag, seconds, late)])[0]


def test_an_extension_moves_the_expiry_from_now_on(
    driver: AmqpDriver, channel: FakeChannel, clock: FakeClock
) -> None:
    """No frame but a heartbeat is sent for it."""
    tag = claim(driver, channel, clock, seconds=10).tag
    clock.advance(9)
    assert extend(driver, tag) is Answer.HELD
    clock.advance(9)
    assert extend(driver, tag) is Answer.HELD
    clock.advance(10)
    assert extend(driver, tag) is Answer.LOST
    assert channel.frames == []


def test_a_channel_that_closed_has_lost_its_leases(
    driver: AmqpDriver, channel: FakeChannel, clock: FakeClock
) -> None:
    """For every call, although the lease has not expired."""
    tag = claim(driver, channel, clock).tag
    channel.connection = None
    assert extend(driver, tag) is Answer.LOST
    assert driver.complete([tag]) == [Answer.LOST]
    assert driver.requeue([tag]) == [Answer.LOST]


def test_a_cut_that_nobody_has_read_yet_is_noticed(
    driver: AmqpDriver, connection: FakeConnection, channel: FakeChannel, clock: FakeClock
) -> None:
    """The main loop may stand still; what lies unread in the socket does not hide it."""
    tags = [claim(driver, channel, clock, number=number).tag for number in (1, 2)]
    connection.peer.send(b"unread")
    assert extend(driver, tags[0]) is Answer.HELD
    connection.peer.shutdown(socket.SHUT_RDWR)
    assert extend(driver, tags[0]) is Answer.LOST
    assert driver.complete([tags[1]]) == [Answer.LOST]
    assert channel.frames == []


def test_each_way_to_settle_is_one_frame_and_happens_once(
    driver: AmqpDriver, channel: FakeChannel, clock: FakeClock
) -> None:
    """What is orderly is a negative acknowledgement, which RabbitMQ 4.3 does not count."""
    tags = [claim(driver, channel, clock, number=number).tag for number in range(1, 5)]
    driver.complete(tags[:1])
    driver.drop(tags[1:2])
    driver.requeue(tags[2:3], orderly=True)
    driver.requeue(tags[3:], orderly=False)
    assert channel.frames == [
        (spec.Basic.Ack, 1, False),
        (spec.Basic.Reject, 2, False),
        (spec.Basic.Nack, 3, False, True),
        (spec.Basic.Reject, 4, True),
    ]
    assert driver.complete(tags) == [Answer.LOST] * 4
    assert len(channel.frames) == 4


def test_a_holder_is_asked_whether_it_takes_more_before_it_gives_back(
    driver: AmqpDriver, channel: FakeChannel, clock: FakeClock
) -> None:
    """Once for a channel: the broker would deliver the same messages to it again."""
    tags = [claim(driver, channel, clock, number=number).tag for number in (1, 2)]
    driver.requeue(tags)
    assert channel.stops == 1


def test_a_frame_that_cannot_be_written_ends_its_connection(
    driver: AmqpDriver, connection: FakeConnection, channel: FakeChannel, clock: FakeClock
) -> None:
    """A part of it may have been: whatever followed would be read as its rest."""
    tag = claim(driver, channel, clock).tag
    channel.error = BlockingIOError()
    assert driver.complete([tag]) == [Answer.LOST]
    assert connection.peer.recv(1) == b""


def test_the_reaper_returns_what_its_holder_did_not(
    driver: AmqpDriver, channel: FakeChannel, clock: FakeClock
) -> None:
    """A moment after the expiry, in which the holder may end its task; only what has expired."""
    late = claim(driver, channel, clock, number=1, seconds=10).tag
    claim(driver, channel, clock, number=2, seconds=60)
    clock.advance(10 + GRACE - 0.1)
    assert driver.reap(limit=10) == []
    clock.advance(0.1)
    (reaped,) = driver.reap(limit=10)
    assert (reaped.tag, reaped.queue, reaped.about) == (late, "q", {"id": 1})
    assert reaped.late == pytest.approx(GRACE)
    assert channel.frames == [(spec.Basic.Reject, 1, True)]
    assert driver.complete([late]) == [Answer.LOST]


def test_the_reaper_counts_no_loss_of_what_has_not_begun(
    driver: AmqpDriver, channel: FakeChannel, clock: FakeClock
) -> None:
    """It goes back as in order, which RabbitMQ 4.3's quorum queues do not count either."""
    claim(driver, channel, clock, waits=True)
    clock.advance(10 + GRACE)
    assert len(driver.reap(limit=10)) == 1
    assert channel.frames == [(spec.Basic.Nack, 1, False, True)]
    assert claim(driver, channel, clock, redelivered=True).losses == 0


def test_a_message_that_is_back_before_its_loss_was_seen_counts_it(
    driver: AmqpDriver, connection: FakeConnection, channel: FakeChannel, clock: FakeClock
) -> None:
    """RabbitMQ delivers it as soon as its channel is closed, while its task still runs here."""
    tag = claim(driver, channel, clock, waits=True).tag
    assert driver.begin([tag]) == [Answer.HELD]
    driver.forget(channel)
    again = claim(driver, FakeChannel(connection), clock, redelivered=True, waits=True)
    assert again.losses == 1
    driver.requeue([tag], orderly=False)  # only now its task ends
    once_more = claim(driver, FakeChannel(connection), clock, redelivered=True)
    assert once_more.losses == 1, "the second only waited"


def test_an_orderly_end_that_rabbitmq_was_not_told_of_is_no_loss(
    driver: AmqpDriver, connection: FakeConnection, channel: FakeChannel, clock: FakeClock
) -> None:
    """Its channel may be closed by then, and the message on its way."""
    tag = claim(driver, channel, clock).tag
    driver.ended([tag])
    assert claim(driver, FakeChannel(connection), clock, redelivered=True).losses == 0


def test_a_closing_channel_gives_up_its_own_leases_only(
    driver: AmqpDriver, channel: FakeChannel, connection: FakeConnection, clock: FakeClock
) -> None:
    """Numbers repeat on each channel; tags do not."""
    lost = claim(driver, channel, clock).tag
    kept = claim(driver, FakeChannel(connection), clock).tag
    assert driver.forget(channel) == [lost]
    assert extend(driver, lost) is Answer.LOST
    assert extend(driver, kept) is Answer.HELD


def test_a_lease_is_no_longer_than_the_broker_waits(
    driver: AmqpDriver, channel: FakeChannel, clock: FakeClock
) -> None:
    """Also the first one, before any extension."""
    given = claim(driver, channel, clock, seconds=300, timeout=90)
    assert (given.seconds, given.limit) == (60, 60)


def test_heartbeats_go_out_with_extensions_and_not_more_often_than_needed(
    driver: AmqpDriver, connection: FakeConnection, channel: FakeChannel, clock: FakeClock
) -> None:
    """They keep a connection that nobody reads for as long as something makes progress."""
    tag = claim(driver, channel, clock, seconds=100).tag
    for _ in range(12):
        clock.advance(5)
        assert extend(driver, tag, 100) is Answer.HELD
    assert connection.heartbeats == 3
