"""The RabbitMQ driver on Debian's server, by consumers inside of the test."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from amqp.basic_message import Message
from amqp.exceptions import PreconditionFailed
from kombu import Queue

from celery_lease.brokers.amqp import dead
from celery_lease.core.delivery import Answer
from harness.lease_desk import bodies
from harness.rabbitmq import QUORUM, RabbitBench
from harness.tcp_proxy import TcpProxy
from harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.lease_desk import Bench
    from harness.rabbitmq import RabbitServer

pytestmark = pytest.mark.compat

_numbers = itertools.count(1)


@pytest.fixture
def bench(rabbitmq: RabbitServer) -> Iterator[Bench]:
    """Consumers and publishers."""
    bench = rabbitmq.bench()
    yield bench
    bench.close()


@pytest.fixture(params=[{}, QUORUM], ids=["classic", "quorum"])
def queue(request: pytest.FixtureRequest) -> Queue:
    """A queue of this test, of either kind."""
    return Queue(f"driver{next(_numbers)}", queue_arguments=request.param)


def test_a_former_holder_touches_nothing_and_is_told(bench: Bench, queue: Queue) -> None:
    """Numbers start anew on each channel: what it sent would hit another message."""
    bench.publish("a", queue=queue)
    loser = bench.desk(queue)
    (stale,) = loser.receive()
    loser.connection.collect()  # cut, without a word to the broker
    assert loser.holder.gone == [stale.claim.tag]
    desk = bench.desk(queue)
    (message,) = desk.receive()
    assert (message.claim.deliveries, message.claim.losses) == (2, 0)
    assert message.claim.token > stale.claim.token
    stale.ack()
    assert loser.holder.answers == [Answer.LOST]
    assert loser.extend(stale) is Answer.LOST
    assert desk.extend(message) is Answer.HELD
    message.ack()
    assert desk.holder.answers == [Answer.HELD]
    assert desk.receives_nothing()


def test_a_channel_that_the_broker_closes_loses_its_leases(bench: Bench, queue: Queue) -> None:
    """py-amqp opens it again at once, and its numbers are other messages' from then on."""
    bench.publish("a", queue=queue)
    loser = bench.desk(queue)
    (stale,) = loser.receive()
    loser.channel.basic_ack(77)
    with pytest.raises(PreconditionFailed):
        eventually(loser.turn)
    assert loser.channel.is_open
    assert loser.holder.gone == [stale.claim.tag]
    desk = bench.desk(queue)
    (message,) = desk.receive()
    stale.ack()
    assert loser.holder.answers == [Answer.LOST]
    message.ack()
    assert desk.holder.answers == [Answer.HELD]


def test_deliveries_are_counted(bench: Bench, queue: Queue) -> None:
    """By a quorum queue, else by who sees them; in order, whoever returned the message."""
    bench.publish("a", queue=queue)
    with bench.desk(queue) as desk:
        for number in (1, 2, 3):
            (message,) = desk.receive()
            assert message.claim.deliveries == number
            message.reject(requeue=True)
        (message,) = desk.receive()
        message.ack()


def test_orderly_returns_end_no_message(bench: Bench) -> None:
    """Whatever its queue's limit: RabbitMQ would drop it unrun, 20 being its default since 4.0."""
    arguments = {**QUORUM, "x-delivery-limit": 20}
    queue = Queue(f"driver{next(_numbers)}", queue_arguments=arguments)
    headers = {"id": "t1", "task": "proj.work"}
    bench.publish("a", queue=queue, headers=headers, correlation_id="t1")
    with bench.desk(queue) as desk:
        for _ in range(25):
            (message,) = desk.receive()
            tags = [message.claim.tag]
            assert desk.driver.requeue(tags, orderly=True, front=True) == [Answer.HELD]
        (message,) = desk.receive()
        kept = {key: message.headers[key] for key in headers}
        assert (message.payload, kept, message.claim.losses) == ("a", headers, 0)
        message.ack()
    eventually(lambda: bench.waiting(queue.name) == 0)


def test_what_is_dropped_is_the_queues_own_to_dead_letter(bench: Bench, queue: Queue) -> None:
    """As without leases."""
    dead = f"{queue.name}.dead"
    queue.queue_arguments = {
        **queue.queue_arguments,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    with bench.channel() as channel:
        Queue(dead, channel=channel).declare()
    bench.publish("a", "b", queue=queue)
    desk = bench.desk(queue)
    dropped, done = desk.receive(2)
    dropped.reject()
    done.ack()
    assert desk.holder.answers == [Answer.HELD, Answer.HELD]
    eventually(lambda: bench.waiting(dead) == 1)
    assert desk.receives_nothing(0.2)
    assert bench.waiting(dead) == 1


def test_what_is_lost_too_often_is_copied_to_a_queue_of_its_own(bench: Bench, queue: Queue) -> None:
    """Whole but for what would end it there; then the message is acknowledged."""
    dead = f"{queue.name}.dead"
    headers = {"id": "t1", "task": "proj.work"}
    properties = {"correlation_id": "t1", "priority": 3, "expiration": 60}
    bench.publish("a", queue=queue, headers=headers, **properties)
    desk = bench.desk(queue)
    (message,) = desk.receive()
    desk.driver.requeue([message.claim.tag], orderly=False, front=True)
    (message,) = desk.receive()
    assert message.claim.losses == 1
    assert desk.driver.dead_letter(message.claim.tag, dead) is Answer.HELD
    assert desk.driver.dead_letter(message.claim.tag, dead) is Answer.LOST
    letters = desk.driver.dead_letters()
    assert letters.queues([dead, "none"]) == [dead]
    (letter,) = letters.letters(dead)
    assert (letter.task_id, letter.task, letter.origin) == ("t1", "proj.work", queue.name)
    assert (letter.losses, letter.body) == (1, "a")
    assert letters.retry(letter)
    (message,) = desk.receive()
    assert (message.payload, message.headers) == ("a", headers)
    assert (message.claim.deliveries, message.claim.losses) == (1, 0)
    assert message.properties["priority"] == 3
    assert not letters.retry(letter)
    message.ack()


def test_a_letter_is_sent_as_the_worker_speaks(rabbitmq: RabbitServer) -> None:
    """Also over TLS, where it has a connection of its own."""
    bench, queue = rabbitmq.tls_bench(), Queue(f"driver{next(_numbers)}")
    bench.publish("a", queue=queue)
    desk = bench.desk(queue)
    (message,) = desk.receive()
    assert desk.driver.dead_letter(message.claim.tag, f"{queue.name}.dead") is Answer.HELD
    assert bench.waiting(f"{queue.name}.dead") == 1
    bench.close()


def test_a_letter_keeps_nobody_whose_broker_falls_silent(
    rabbitmq: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its first answers: each further one is waited for in bounded time."""
    queue = Queue(f"driver{next(_numbers)}")
    with (
        TcpProxy(rabbitmq.port) as network,
        closing(RabbitBench(rabbitmq.url_at(network.port))) as bench,
    ):

        def message_in_silence(*args: Any, **properties: Any) -> Message:
            network.freeze()
            return Message(*args, **properties)

        monkeypatch.setattr(dead, "Message", message_in_silence)
        bench.publish("a", queue=queue)
        desk = bench.desk(queue)
        (message,) = desk.receive()
        answers: list[Answer] = []
        dead_letter = lambda: answers.append(desk.driver.dead_letter(message.claim.tag, "dead"))  # noqa: E731
        moving = threading.Thread(target=dead_letter, daemon=True)
        moving.start()
        moving.join(4 * dead.ANSWER_TIMEOUT)
        assert answers == [Answer.UNKNOWN]
        network.thaw()


def test_a_letter_that_nobody_takes_stays(bench: Bench, queue: Queue) -> None:
    """Looking at it changes nothing; throwing it away does."""
    dead = f"{queue.name}.dead"
    bench.publish("a", "b", queue=queue)
    desk = bench.desk(queue)
    for message in desk.receive(2):
        desk.driver.dead_letter(message.claim.tag, dead)
    first, second = desk.driver.dead_letters().letters(dead)
    assert (first.body, second.body) == ("a", "b")
    assert desk.driver.dead_letters().purge(first)
    assert bench.waiting(dead) == 0, "it is being looked at"
    desk.driver.close()
    eventually(lambda: bench.waiting(dead) == 1)


def test_a_queue_with_a_dead_letter_exchange_keeps_it(bench: Bench, queue: Queue) -> None:
    """What is lost too often goes there, and no copy is made."""
    bench.publish(queue=f"{queue.name}.other")
    queue.queue_arguments = {
        **queue.queue_arguments,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": f"{queue.name}.other",
    }
    bench.publish("a", queue=queue)
    desk = bench.desk(queue)
    (message,) = desk.receive()
    assert desk.driver.dead_letter(message.claim.tag, f"{queue.name}.dead") is Answer.HELD
    eventually(lambda: bench.waiting(f"{queue.name}.other") == 1)
    assert desk.driver.dead_letters().queues([f"{queue.name}.dead"]) == []


def test_a_holder_that_takes_nothing_more_gets_nothing_more(bench: Bench, queue: Queue) -> None:
    """Not even what it returns, until it takes messages again."""
    bench.publish("a", "b", queue=queue)
    desk = bench.desk(queue)
    messages = desk.receive(2)
    desk.holder.backlogged = True
    tags = [message.claim.tag for message in messages]
    with ThreadPoolExecutor(1) as elsewhere:  # the keeper's thread
        answers = elsewhere.submit(desk.driver.requeue, tags, orderly=True, front=True)
    assert answers.result() == [Answer.HELD, Answer.HELD]
    bench.publish("c", queue=queue)
    assert desk.receives_nothing(1.0)
    desk.driver.turn(desk.channel)
    assert desk.receives_nothing(0.5)
    desk.holder.backlogged = False
    desk.driver.turn(desk.channel)
    assert sorted(bodies(desk.receive(3))) == ["a", "b", "c"]


def test_a_holder_that_takes_nothing_more_does_not_begin_to(bench: Bench, queue: Queue) -> None:
    """As a drained worker that has connected anew, until it takes messages again."""
    desk = bench.desk(queue)
    desk.stop()
    bench.publish("a", queue=queue)
    desk.holder.backlogged = True
    desk.driver.turn(desk.channel)
    desk.consumer.consume()
    assert desk.receives_nothing(1.0)
    desk.holder.backlogged = False
    desk.driver.turn(desk.channel)
    assert bodies(desk.receive()) == ["a"]


def test_a_cancelled_consumer_does_not_come_back(bench: Bench, queue: Queue) -> None:
    """A holder's pause is not the end of what somebody else has ended."""
    desk = bench.desk(queue)
    desk.turn()
    desk.holder.backlogged = True
    desk.driver.turn(desk.channel)
    desk.stop()
    desk.holder.backlogged = False
    desk.driver.turn(desk.channel)
    bench.publish("a", queue=queue)
    assert desk.receives_nothing(1.0)


@pytest.fixture(params=["plain", "TLS"])
def either(request: pytest.FixtureRequest, rabbitmq: RabbitServer) -> Iterator[Bench]:
    """Consumers and publishers that speak TLS, or do not."""
    bench = rabbitmq.tls_bench() if request.param == "TLS" else rabbitmq.bench()
    yield bench
    bench.close()


def test_threads_settle_while_another_reads(either: Bench) -> None:
    """Frames of several threads never mix: the server would close the connection."""
    bench, queue = either, Queue(f"driver{next(_numbers)}")
    count = 1500
    bench.publish(*range(count), queue=queue)
    desk = bench.desk(queue, prefetch=200)

    def settle(message: Any) -> Answer:
        answers: list[Answer] = desk.driver.complete([message.claim.tag])
        return answers[0]

    with ThreadPoolExecutor(8) as threads:
        settled = [threads.submit(settle, desk.receive()[0]) for _ in range(count)]
    assert {each.result() for each in settled} == {Answer.HELD}
    eventually(lambda: bench.waiting(queue.name) == 0)
    desk.close()
    with bench.desk(queue) as other:
        assert other.receives_nothing()


def test_a_queues_own_consumer_timeout_bounds_its_leases(
    rabbitmq: RabbitServer, bench: Bench
) -> None:
    """It stands in the arguments that the consumer declares, in milliseconds."""
    arguments = {**rabbitmq.timed, "x-consumer-timeout": 300_000}
    queue = Queue(f"driver{next(_numbers)}", queue_arguments=arguments)
    bench.publish("a", queue=queue)
    (message,) = bench.desk(queue, seconds=600).receive()
    assert (message.claim.limit, message.claim.seconds) == (240, 240)


def test_messages_without_terms_are_kombus(bench: Bench, queue: Queue) -> None:
    """Numbers as tags, and no part in anything."""
    bench.publish("a", "b", queue=queue)
    desk = bench.desk(queue)
    desk.holder.leases = lambda message: message.payload == "b"
    plain, leased = desk.receive(2)
    assert plain.delivery_tag == 1
    assert leased.delivery_tag == leased.claim.tag
    plain.reject(requeue=True)
    (plain,) = desk.receive()
    plain.ack()
    leased.ack()
    assert desk.holder.answers == [Answer.HELD]
    desk.close()
    with bench.desk(queue) as other:
        assert other.receives_nothing()
