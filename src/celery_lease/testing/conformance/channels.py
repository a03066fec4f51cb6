"""Closing channels, settling, the prefetch window, sweeps and dead letters."""

from __future__ import annotations

import contextlib
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kombu import Connection, Consumer, Queue

from celery_lease.core.delivery import Answer, Reaped, Renewal
from celery_lease.core.driver import Driver
from celery_lease.core.errors import UnsupportedOperation
from celery_lease.standalone.consumer import lease_consumer
from celery_lease.testing.conformance.fixtures import LONG
from celery_lease.testing.desk import Bench, Desk, bodies
from celery_lease.testing.waiting import eventually


@pytest.mark.needs("orders")
def test_a_closing_channel_returns_its_messages_in_their_order(bench: Bench, desk: Desk) -> None:
    """The oldest message is delivered next, before those that were sent meanwhile."""
    bench.publish("a", "b", "c")
    with bench.desk() as closing:
        # Only one of the two may take them: the other has had no turn yet.
        assert bodies(closing.receive(3)) == ["a", "b", "c"]
        bench.publish("d")
    assert bodies(desk.receive(4)) == ["a", "b", "c", "d"]


@pytest.mark.needs("losses")
def test_what_a_closing_channel_returns_is_not_lost(bench: Bench, desk: Desk) -> None:
    """The return is an orderly one."""
    bench.publish("a")
    with bench.desk() as closing:
        closing.receive()
    (message,) = desk.receive()
    assert message.claim.losses == 0


@pytest.mark.parametrize("settle", ["ack", "reject", "requeue"])
def test_what_is_settled_after_its_channel_closed_changes_nothing(
    bench: Bench, desk: Desk, other: Desk, settle: str
) -> None:
    """A task that was ended is reported late, when the worker has another connection.

    The settlement went to kombu, which has no connection there any more: ``AttributeError:
    'NoneType' object has no attribute 'client'``, the end of the worker.
    """
    bench.publish("a")
    (message,) = desk.receive()
    desk.connection.release()
    (heir,) = other.receive()
    getattr(message, settle)()
    assert other.extend(heir) is Answer.HELD
    heir.ack()
    assert bench.waiting() == 0


@pytest.mark.needs("outlives")
def test_work_that_goes_on_keeps_its_lease_when_the_channel_closes(
    bench: Bench, other: Desk
) -> None:
    """The channel is closed, but the lease can be extended and completed."""
    bench.publish("runs", "waits")
    desk = bench.desk()
    runs, waits = desk.receive(2)
    desk.holder.kept.add(runs.claim.tag)
    desk.connection.release()
    assert bodies(other.receive()) == [waits.payload]
    assert other.receives_nothing()
    assert desk.extend(runs) is Answer.HELD
    assert desk.driver.complete([runs.claim.tag]) == [Answer.HELD]
    desk.driver.close()


def test_a_rejected_message_goes_to_the_back_or_away(bench: Bench, desk: Desk) -> None:
    """A requeue is the broker's own; the requeued message does not overtake others."""
    bench.publish("a", "b")
    a, b = desk.receive(2)
    bench.publish("c")
    a.reject(requeue=True)
    b.reject()
    assert sorted(bodies(desk.receive(2))) == sorted([a.payload, "c"])
    assert desk.receives_nothing()


@pytest.mark.parametrize("settle", ["ack", "reject", "requeue"])
def test_a_settled_message_frees_its_place_in_the_prefetch_window(
    bench: Bench, settle: str
) -> None:
    """The window holds its size, and every way of settling opens it by one."""
    bench.publish("a", "b", "c")
    with bench.desk(prefetch=2) as desk:
        first, _ = desk.receive(2)
        assert desk.receives_nothing()
        getattr(first, settle)()
        desk.receive()
        assert desk.receives_nothing()


def test_every_method_is_there_and_raises_but_one_error(bench: Bench, desk: Desk) -> None:
    """On every driver each method works, or names what its broker cannot do."""
    bench.publish("a", "b")
    first, second = desk.receive(2)
    driver, can = desk.driver, desk.driver.capabilities
    assert Driver in type(driver).__mro__
    assert driver.return_unclaimed([]) == []
    assert driver.extend([Renewal(first.claim.tag, LONG)], timeout=5.0) == [Answer.HELD]
    assert driver.begin([first.claim.tag]) == [Answer.HELD]
    assert driver.overdue(limit=10) == driver.reap(limit=10) == []
    assert driver.drop([first.claim.tag]) == [Answer.HELD]
    assert driver.drop([first.claim.tag]) == [Answer.LOST]
    for is_able, operation, arguments in (
        (can.dead_letters, "dead_letter", (second.claim.tag, "q-dead")),
        (can.dead_letters, "dead_letters", ()),
        (can.records, "records", ()),
    ):
        if is_able:
            assert getattr(driver, operation)(*arguments) is not Answer.UNKNOWN
            continue
        with pytest.raises(UnsupportedOperation) as refused:
            getattr(driver, operation)(*arguments)
        assert f"{operation}()" in str(refused.value)
    assert driver.complete([second.claim.tag]) == [Answer.LOST if can.dead_letters else Answer.HELD]
    assert driver.requeue([second.claim.tag], orderly=True, front=True) == [Answer.LOST]


def test_what_will_expire_can_be_looked_at(bench: Bench, desk: Desk) -> None:
    """A look changes nothing; :meth:`reap` returns the messages that it showed."""
    bench.publish("a")
    with bench.desk(seconds=bench.shortest) as loser:
        loser.receive()
        loser.stop()
        eventually(lambda: loser.driver.overdue(limit=10) or bench.waiting())
        seen = [each.tag for each in loser.driver.overdue(limit=10)]
        assert [each.tag for each in loser.driver.reap(limit=10)] == seen
        assert loser.driver.overdue(limit=10) == []
    assert bodies(desk.receive()) == ["a"]


def test_a_plain_consumer_drops_and_completes_on_every_broker(bench: Bench) -> None:
    """``lease_consumer`` has both; where the broker cannot drop, it acknowledges."""
    bench.publish("a", "b", "c")
    with Connection(bench.url, transport_options=bench.options) as connection:
        leases = lease_consumer(channel := connection.channel(), LONG)
        received: list[Any] = []
        with Consumer(channel, [Queue("q")], on_message=received.append):
            eventually(lambda: _drained(connection) or len(received) == 3)
            tags = [message.delivery_tag for message in received]
            leases.drop(tags[0])
            leases.complete(tags[1])
            assert not leases.outran(None, 0.0, "q", 0.0)
    leases.close()
    eventually(lambda: bench.waiting() == 1)


def _drained(connection: Connection) -> bool:
    """Let the connection work for a moment, and return False."""
    with contextlib.suppress(TimeoutError):
        connection.drain_events(timeout=0.2)
    return False


@pytest.mark.needs("reaps")
def test_reapers_that_sweep_at_once_return_each_message_once(bench: Bench) -> None:
    """No message is returned twice, none is left, and no call returns more than its limit."""
    bench.publish(*range(60))
    with bench.desk(seconds=bench.shortest) as loser, bench.desk("elsewhere") as reaper:
        tags = {message.claim.tag for message in loser.receive(60)}
        loser.stop()
        threading.Event().wait(bench.shortest * 2)

        def sweep(_: int) -> list[Reaped]:
            reaped: list[Reaped] = reaper.driver.reap(limit=7)
            assert len(reaped) <= 7
            return reaped

        with ThreadPoolExecutor(4) as threads:
            swept = [each.tag for batch in threads.map(sweep, range(16)) for each in batch]
        assert sorted(swept) == sorted(tags)
        assert bench.waiting() == 60


@pytest.mark.needs("dead_letters")
@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_a_dead_letter_tells_its_task_whatever_its_message_is(
    bench: Bench, desk: Desk, serializer: str
) -> None:
    """A message of protocol 1 has neither name nor id in its headers."""
    bench.publish({"task": "proj.long", "id": "an id"}, serializer=serializer)
    (message,) = desk.receive()
    dead = f"q.{uuid.uuid4().hex[:8]}"
    about = {"task": "proj.long", "id": "an id"}
    assert desk.driver.dead_letter(message.claim.tag, dead, about) is Answer.HELD
    letters = desk.driver.dead_letters()
    (letter,) = letters.letters(dead)
    assert (letter.task, letter.task_id) == ("proj.long", "an id")
    assert letters.retry(letter) is True
    (again,) = desk.receive()
    again.accept = {"application/json", "application/x-python-serialize"}
    assert again.payload == {"task": "proj.long", "id": "an id"}


@pytest.mark.needs("dead_letters")
def test_a_dead_letter_keeps_what_was_known_of_its_losses(bench: Bench, desk: Desk) -> None:
    """It has each loss once, as many as fit; a replayed message has fresh counters."""
    options: dict[str, Any] = {"headers": {"id": "an id"}, "correlation_id": "an id"}
    bench.publish({"task": "proj.long", "id": "an id"}, **options)
    why = {"cause": "SIGSEGV", "note": "sawing", "done": 3.0, "stack": "in saw\n" * 250}
    message = desk.receive()[0]
    tags = [message.claim.tag]
    answer = desk.driver.requeue(tags, orderly=False, front=True, why=why)
    assert answer == [Answer.HELD]
    desk.driver.requeue(tags, orderly=False, front=True, why=why)
    dead = f"q.{uuid.uuid4().hex[:8]}"
    again = desk.receive()[0]
    if desk.driver.capabilities.records:
        assert [each["cause"] for each in desk.driver.records().losses(again.claim.tag)] == [
            "SIGSEGV"
        ]
    assert desk.driver.dead_letter(again.claim.tag, dead, {"id": "an id"}) is Answer.HELD
    letters = desk.driver.dead_letters()
    (letter,) = letters.letters(dead)
    (loss,) = letter.history
    assert {name: loss[name] for name in why} == why
    assert (loss["token"], loss["deliveries"]) == (message.claim.token, 1)
    assert (loss["reason"], loss["since"] <= loss["ended"]) == ("given up", True)
    assert letters.retry(letter) is True
    assert desk.driver.dead_letter(desk.receive()[0].claim.tag, dead) is Answer.HELD
    (letter,) = letters.letters(dead)
    assert letter.history == ()
