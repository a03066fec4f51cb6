"""A channel that writes its frames into a list, on a connection over a real pair of sockets."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from amqp.exceptions import RecoverableConnectionError

from celery_lease.brokers.amqp.delivery import Delivery
from celery_lease.brokers.amqp.limits import Limit
from celery_lease.core.delivery import Terms

if TYPE_CHECKING:
    from celery_lease.brokers.amqp.driver import AmqpDriver
    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Claim


class FakeConnection:
    """What the driver needs of py-amqp's."""

    heartbeat = 60

    def __init__(self) -> None:
        self.sock, self.peer = socket.socketpair()
        self.heartbeats = 0

    def send_heartbeat(self) -> None:
        self.heartbeats += 1

    def close(self) -> None:
        for end in (self.sock, self.peer):
            end.close()


class FakeChannel:
    """What the driver needs of kombu's."""

    def __init__(self, connection: FakeConnection | None = None) -> None:
        self.connection: FakeConnection | None = connection or FakeConnection()
        self.frames: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.stops = 0

    def send_method(self, method: Any, _format: str, arguments: tuple[Any, ...]) -> None:
        if self.connection is None:
            raise RecoverableConnectionError("connection already closed")
        if self.error is not None:
            raise self.error
        self.frames.append((method, *arguments))

    def stop_if_backlogged(self) -> None:
        self.stops += 1


def claim(
    driver: AmqpDriver,
    channel: FakeChannel,
    clock: Clock,
    *,
    number: int = 1,
    seconds: float = 10.0,
    timeout: float = 1800.0,
    redelivered: bool = False,
    waits: bool = False,
) -> Claim:
    """Let a message arrive on a channel."""
    delivery = Delivery(
        channel=channel,
        number=number,
        limit=Limit("q", timeout),
        message_id=f"m{number}",
        headers={},
        redelivered=redelivered,
    )
    terms = Terms(seconds=seconds, waits=waits, about={"id": number})
    return driver.claim(delivery, terms, clock.now())
