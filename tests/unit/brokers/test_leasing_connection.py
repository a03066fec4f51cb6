"""Connections whose channels can lease: kombu's seam, and kombu's own in all else."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Consumer, Producer, Queue
from kombu.transport.memory import Channel

from celery_lease.brokers import driver_class, kind_of
from celery_lease.brokers.connection import LeasingConnection, leasing
from celery_lease.brokers.memory.driver import STORE, MemoryDriver
from celery_lease.brokers.qos import LeasingChannel, SettlingQoS
from celery_lease.core.delivery import Terms
from celery_lease.worker.steps import LeaseSettings
from unit.fakes import FakeClock

URLS = [
    "memory://",
    "redis://127.0.0.1:1/0",
    "rediss://127.0.0.1:1/0",
    "redis+socket:///tmp/no.sock",
    "sentinel://127.0.0.1:1",
    "amqp://127.0.0.1:1",
    "amqps://127.0.0.1:1",
    "sqs://key:secret@",
    "pgmq://127.0.0.1:1/db",
]
NEEDED = {"sqs": ["boto3"], "pgmq": ["kombu.transport.pgmq", "pgmq"]}


def is_here(url: str) -> bool:
    """Whether the libraries that a transport needs are installed."""
    return all(find_spec(each) for each in NEEDED.get(url.partition(":")[0], ()))


def channel_class(connection: Any) -> Any:
    """Return the class of which a connection's channels are; it is not opened."""
    transport: Any = type(connection.transport)
    return getattr(transport, "Channel", None) or transport.Connection.Channel


@pytest.mark.parametrize("url", [url for url in URLS if is_here(url)])
@pytest.mark.parametrize("how", ["new", "cloned", "of two", "switched"])
def test_channels_can_lease_however_the_connection_came(url: str, how: str) -> None:
    """Over TLS, a socket, sentinels; cloned, and when it goes on to its next address.

    A socket's address is none that kombu can switch to by itself.
    """
    url = url if how != "switched" else url.replace("redis+socket", "redis")
    connection: Any = LeasingConnection(url if how != "of two" else f"{url};{url}")
    if how == "cloned":
        connection = connection.clone()
    if how == "switched":
        connection = LeasingConnection("memory://")
        assert connection.transport
        connection.switch(url)
    found = channel_class(connection)
    assert issubclass(found, LeasingChannel)
    assert issubclass(found, channel_class(Connection(url)))
    if hasattr(found, "QoS"):
        assert {SettlingQoS, channel_class(Connection(url)).QoS} <= set(found.QoS.__mro__)
    assert kind_of(connection) is driver_class(connection.transport.driver_type)


def test_a_transport_without_a_driver_is_kombus_own() -> None:
    """What a worker sends elsewhere goes as it went."""
    connection = LeasingConnection("filesystem://")
    assert type(connection.transport) is type(Connection("filesystem://").transport)


def test_a_connection_class_of_the_apps_own_stays_one() -> None:
    """It is asked first what its transport is; and no class is made twice."""

    class Own(Connection):
        pass

    assert issubclass(leasing(Own), Own)
    assert issubclass(leasing(Own), LeasingConnection)
    assert leasing(Connection) is leasing(LeasingConnection) is LeasingConnection
    assert leasing(leasing(Own)) is leasing(Own)


class Recorder:
    """Leases everything, and remembers which messages."""

    backlogged = False

    def __init__(self) -> None:
        self.claims: list[Any] = []

    def terms(self, _: Any) -> Any:
        return Terms(seconds=10.0)

    def claimed(self, claim: Any, _: Any) -> None:
        self.claims.append(claim)

    def requeue(self, tags: Any, *, front: bool) -> None:
        del tags, front

    def keeps(self, _: str) -> bool:
        return False


def test_only_the_channel_that_begins_to_is_leased() -> None:
    """Another one of the same connection takes and acknowledges messages as kombu does."""
    Channel.queues.clear()
    STORE.deliveries.clear()
    with LeasingConnection("memory://") as connection:
        leased, plain = connection.channel(), connection.channel()
        clock = FakeClock()
        recorder: Any = Recorder()
        MemoryDriver(clock).lease_messages(leased, recorder, clock)
        received: list[Any] = []
        Consumer(plain, [Queue("p")], on_message=received.append).consume()
        Consumer(leased, [Queue("l")], on_message=received.append).consume()
        for name in ("p", "l"):
            Producer(connection.channel()).publish(name, routing_key=name)
        while len(received) < 2:
            connection.drain_events(timeout=1)
        assert [claim.queue for claim in recorder.claims] == ["l"]
        (message,) = (each for each in received if each.payload == "p")
        message.ack()
        assert len(plain.qos._dirty) + len(plain.qos._delivered) <= 2
        assert not plain.qos.leased
        assert len(STORE.deliveries) == 1


def test_a_worker_connects_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its start on, every connection of its app is one."""
    app: Any = Celery("proj", broker="memory://", set_as_current=False)
    worker: Any = SimpleNamespace(app=app, pool_cls="solo", consumer=None)
    monkeypatch.setattr("celery_lease.worker.steps.inherits_memory", lambda _: True)
    monkeypatch.setattr("celery_lease.worker.steps.forks_its_pool", lambda _: False)
    step = LeaseSettings(worker)
    step.start(worker)
    step.board.close()
    assert isinstance(app.connection_for_read(), LeasingConnection)
    assert isinstance(app.connection_for_write(), LeasingConnection)
