"""Leases in large numbers: messages are made and claimed in batches where a broker can do that."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from kombu import Connection, Producer, Queue
from psycopg import sql

from celery_lease import brokers
from celery_lease.brokers.pgmq.fence import Delivery as Row, ReceivedMessage
from celery_lease.brokers.redis.delivery import Delivery
from celery_lease.core.clock import SystemClock
from celery_lease.core.delivery import Claim, Terms
from harness.lease_desk import Desk
from harness.rabbitmq import ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.places import Place

#: Bytes of one message, as a task of a few arguments has.
PAYLOAD = "x" * 600
AT_ONCE = 100


def declare(place: Place) -> Queue:
    """Make the queue of a place."""
    queue = Queue(place.queue, queue_arguments=place.setup.conf.get(ARGUMENTS) or {})
    with _connected(place) as connection:
        queue(connection.default_channel).declare()
    return queue


def claimed(place: Place, count: int, seconds: float) -> tuple[Any, Iterator[Claim]]:
    """Return a driver, and the leases that it then takes on messages of its own."""
    if place.setup.broker.startswith("amqp"):
        return _amqp(place, count, seconds)
    driver = brokers.driver(_connected(place).default_channel)
    terms = Terms(seconds=seconds, about={"task": "growth.work", "worker": "growth"})
    claim = _redis if place.setup.broker.startswith("redis") else _pgmq
    sizes = (min(AT_ONCE, count - start) for start in range(0, count, AT_ONCE))
    return driver, (each for size in sizes for each in claim(driver, place.queue, size, terms))


def _connected(place: Place) -> Connection:
    options = place.setup.conf.get("broker_transport_options")
    return Connection(place.setup.broker, transport_options=options)


def _redis(driver: Any, queue: str, count: int, terms: Terms) -> Iterator[Claim]:
    """Claim as a channel does, with the calls in pipelines."""
    keys = [*driver.keys.claims, driver.keys.token, driver.keys.refusals]
    deliveries = [_delivery(queue) for _ in range(count)]
    asked_at = SystemClock().now()

    def command(client: Any) -> list[Any]:
        with client.pipeline(transaction=False) as pipe:
            for each in deliveries:
                text = f"[{each.payload}{each.suffix}"
                args = [each.tag, text, terms.seconds, each.record(terms), each.arrival, ""]
                driver.server._scripts["claim"](keys=keys, args=args, client=pipe)
            return [token for token, *_ in pipe.execute()]

    for each, token in zip(deliveries, driver.server.call(command), strict=True):
        yield Claim(
            tag=each.tag,
            token=int(token),
            queue=queue,
            deliveries=1,
            losses=0,
            asked_at=asked_at,
            seconds=terms.seconds,
        )


def _delivery(queue: str) -> Delivery:
    tag = f"{random.getrandbits(128):032x}#{random.getrandbits(48):012x}"
    payload = f'{{"lease": "000001:000001", "body": "{PAYLOAD}"}}'
    return Delivery(tag, queue, payload, f', "{queue}", "{queue}"]', queue, 1, 0)


def _pgmq(driver: Any, queue: str, count: int, terms: Terms) -> list[Any]:
    run = driver._connections.run
    text = f'{{"body": "{PAYLOAD}"}}'
    send = sql.SQL("SELECT pgmq.send_batch(%s, array_fill(%s::jsonb, ARRAY[%s::int]))")
    run(send, [queue, text, count], timeout=60.0)
    read = sql.SQL("SELECT msg_id, read_ct, last_read_at FROM pgmq.read(%s, 600, %s::int)")
    rows: list[Any] = []
    while len(rows) < count:  # other keepers may be reading this one's messages just now
        rows += run(read, [queue, count - len(rows)], timeout=60.0)
    until = SystemClock().now() + 600
    received = [
        ReceivedMessage(delivery=Row(queue, *row), queue=queue, terms=terms, hidden_until=until)
        for row in rows
    ]
    return list(driver.claim(received))


def _amqp(place: Place, count: int, seconds: float) -> tuple[Any, Iterator[Claim]]:
    queue = declare(place)
    desk = Desk(place.setup.broker, queue, seconds=seconds, prefetch=count)
    with _connected(place) as connection:
        producer = Producer(connection)
        for _ in range(count):
            producer.publish({"body": PAYLOAD}, routing_key=queue.name)
    return desk.driver, (message.claim for message in desk.receive(count, within=120))
