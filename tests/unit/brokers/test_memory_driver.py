"""Leases on kombu's in-memory transport, on a passed clock: a consumer without any server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection, Consumer, Queue

from celery_lease import brokers
from celery_lease.brokers.memory.driver import MemoryDriver
from celery_lease.core.delivery import Answer
from celery_lease.core.errors import ReceiptHandleExpiredError, UnsupportedBroker
from celery_lease.core.keys import KeyAnswer, Verdict
from celery_lease.standalone.consumer import LeaseConsumer
from harness.memory import empty_memory
from unit.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.lease_desk import Bench


@pytest.fixture
def clock() -> FakeClock:
    """Time that the test moves."""
    return FakeClock()


@pytest.fixture
def bench() -> Bench:
    """An empty broker."""
    return empty_memory()


class Reader:
    """One plain kombu consumer under leases of ten seconds."""

    def __init__(self, clock: FakeClock) -> None:
        self.connection = Connection("memory://")
        channel: Any = self.connection.channel()
        driver = MemoryDriver(clock)
        self.leases = LeaseConsumer(driver, 10.0, clock)
        driver.lease_messages(channel, self.leases, clock)
        self.messages: list[Any] = []
        Consumer(channel, [Queue("q")], on_message=self.messages.append).consume()

    def read(self) -> Any:
        self.connection.drain_events(timeout=1)
        return self.messages.pop()


@pytest.fixture
def reader(clock: FakeClock) -> Iterator[Reader]:
    """A consumer."""
    reader = Reader(clock)
    yield reader
    reader.connection.release()


def test_a_lease_that_is_not_extended_goes_to_somebody_else(
    bench: Bench, reader: Reader, clock: FakeClock
) -> None:
    """After its time, with a greater token, and its former holder is turned away."""
    bench.publish("work")
    stale = reader.read()
    lease = reader.leases.lease_of(stale)
    clock.advance(10)
    other = Reader(clock)
    (reaped,) = other.leases.reap()
    assert reaped.tag == lease.id
    with pytest.raises(ReceiptHandleExpiredError):
        lease.extend_visibility(10)
    stale.ack()
    message = other.read()
    again = other.leases.lease_of(message)
    assert (again.deliveries, again.losses) == (2, 1)
    assert again.fencing_token > lease.fencing_token
    message.ack()
    assert bench.waiting() == 0
    other.connection.release()


def test_an_extended_lease_is_kept(bench: Bench, reader: Reader, clock: FakeClock) -> None:
    """For as long as it is extended in time."""
    bench.publish("work")
    message = reader.read()
    for _ in range(5):
        clock.advance(9)
        reader.leases.lease_of(message).extend_visibility(10)
        assert reader.leases.reap() == []
    message.ack()
    clock.advance(60)
    assert reader.leases.reap() == []


def test_kombus_own_loss_at_the_end_of_a_connection_is_none(
    bench: Bench, reader: Reader, clock: FakeClock
) -> None:
    """The transport forgets what is unacknowledged; a leased message goes back."""
    bench.publish("work")
    reader.read()
    reader.connection.release()
    assert bench.waiting() == 1
    assert clock.now() == 1000.0, "at once"


def test_a_driver_without_a_part_in_it_turns_and_ends_in_peace(reader: Reader) -> None:
    """Both are optional, and the channel may be closed."""
    channel, driver = reader.connection.default_channel, MemoryDriver(FakeClock())
    driver.turn(channel)
    driver.end_receiving(channel)
    reader.connection.release()
    driver.turn(channel)
    driver.tend(channel)
    driver.catch_up(channel)
    driver.end_receiving(channel)


def test_a_driver_that_cannot_take_a_key_and_complete_at_once_asks_twice(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But nothing more once the broker is silent."""
    driver = MemoryDriver(clock)
    lost, unknown = KeyAnswer(Verdict.LOST), KeyAnswer(Verdict.UNKNOWN)
    assert driver.take_key_and_complete("a", ["b"]) == (lost, [Answer.LOST])
    monkeypatch.setattr(driver, "take_key", lambda _: unknown)
    assert driver.take_key_and_complete("a", ["b"]) == (unknown, [Answer.UNKNOWN])


def test_a_transport_without_a_driver_is_refused_by_name() -> None:
    """Before it is connected to, and with what to use instead."""
    with pytest.raises(UnsupportedBroker) as refused:
        brokers.kind_of(Connection("filesystem://"))
    text = str(refused.value)
    assert "'filesystem'" in text
    assert all(name in text for name in brokers.drivers())
    brokers.kind_of(Connection("memory://"))


@pytest.mark.parametrize(
    ("transport", "driver_type", "why"),
    [
        ("gcpubsub", "gcpubsub", "kombu extends whatever it has received"),
        ("azureservicebus", "N/A", "renews locks with no regard for the task"),
    ],
)
def test_a_transport_that_renews_by_itself_is_refused_with_the_reason(
    transport: str, driver_type: str, why: str
) -> None:
    """Its renewals prove that a process lives, and not that a task gets on."""
    connection = SimpleNamespace(
        transport=SimpleNamespace(driver_type=driver_type), transport_cls=transport
    )
    with pytest.raises(UnsupportedBroker) as refused:
        brokers.kind_of(connection)
    assert f"no leases on transport '{transport}' (" in str(refused.value)
    assert why in str(refused.value)
