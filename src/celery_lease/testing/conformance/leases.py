"""Claims, extensions, expiry and fencing."""

from __future__ import annotations

from typing import Any

import pytest

from celery_lease.core.delivery import Answer
from celery_lease.testing.conformance.fixtures import LONG
from celery_lease.testing.desk import Bench, Desk, bodies
from celery_lease.testing.waiting import always, eventually


def is_back(bench: Bench, *reapers: Desk) -> bool:
    """Whether a message is back in its queue, by a reaper or by the broker itself."""
    return sum(len(each.driver.reap(limit=10)) for each in reapers) + bench.waiting() > 0


def take_and_lose(bench: Bench, reaper: Desk) -> Any:
    """Let a message's lease expire; return the message as its former holder has it."""
    loser = bench.desk(seconds=bench.shortest)
    (message,) = loser.receive()
    loser.stop()
    message.desk = loser
    back = "the message of the expired lease is back"
    eventually(lambda: is_back(bench, reaper, loser), what=back)
    return message


def test_a_claim_is_the_first_delivery_and_hides_the_message(
    bench: Bench, desk: Desk, other: Desk
) -> None:
    """No other consumer gets a leased message, and the claim has the number of its delivery."""
    bench.publish("a")
    (message,) = desk.receive()
    claim = message.claim
    assert (claim.deliveries, claim.losses, claim.queue) == (1, 0, "q")
    assert claim.seconds == LONG
    assert bench.waiting() == 0
    assert other.receives_nothing()


def test_a_completed_message_is_gone(bench: Bench, desk: Desk, other: Desk) -> None:
    """An acknowledgement under a lease is final."""
    bench.publish("a")
    desk.receive()[0].ack()
    assert desk.holder.answers == [Answer.HELD]
    desk.close()
    assert bench.waiting() == 0
    assert other.receives_nothing()


def test_an_extended_lease_outlives_its_first_expiry(bench: Bench, other: Desk) -> None:
    """An extension moves the expiry, counted from when it was asked for."""
    bench.publish("a")
    with bench.desk(seconds=1.5) as desk:
        (message,) = desk.receive()
        assert desk.extend(message, LONG) is Answer.HELD
        assert always(lambda: not is_back(bench, other, desk), during=2.0, every=0.2)
        assert desk.extend(message, LONG) is Answer.HELD


def test_an_extension_can_shorten_a_lease(bench: Bench, desk: Desk, other: Desk) -> None:
    """An expiry is the last one that was set, not the latest."""
    bench.publish("a")
    (message,) = desk.receive()
    assert desk.extend(message, bench.shortest) is Answer.HELD
    desk.stop()
    eventually(lambda: is_back(bench, other, desk))
    assert bodies(other.receive()) == ["a"]


@pytest.mark.needs("reaps")
def test_an_expired_lease_is_reaped_and_counted_as_a_loss(bench: Bench, desk: Desk) -> None:
    """A reaper returns the message with its former holder; the next claim has the loss."""
    bench.publish("a")
    loser = bench.desk(seconds=bench.shortest)
    (message,) = loser.receive()
    loser.stop()
    (reaped,) = eventually(lambda: desk.driver.reap(limit=10))
    assert reaped.tag == message.claim.tag
    assert reaped.queue == "q"
    assert reaped.late >= 0
    assert reaped.about["id"] == message.properties["delivery_tag"]
    (again,) = desk.receive()
    assert (again.claim.deliveries, again.claim.losses) == (2, 1)


def test_an_expiry_before_its_task_began_is_no_loss(bench: Bench, desk: Desk) -> None:
    """A message that was only reserved when its worker died has lost nothing, but was delivered."""
    bench.publish("a")
    loser = bench.desk(seconds=bench.shortest)
    loser.holder.waits = True
    loser.receive()
    loser.stop()
    eventually(lambda: is_back(bench, desk, loser))
    (again,) = desk.receive()
    assert (again.claim.deliveries, again.claim.losses) == (2, 0)


@pytest.mark.needs("losses")
def test_what_its_holder_calls_lost_is_lost_though_nothing_was_told_before(
    bench: Bench, desk: Desk
) -> None:
    """A short task's process dies before the broker knows of its beginning; its worker saw it."""
    bench.publish("a")
    desk.holder.waits = True
    for losses in range(2):
        (message,) = desk.receive()
        assert (message.claim.deliveries, message.claim.losses) == (losses + 1, losses)
        assert desk.driver.requeue([message.claim.tag], orderly=False, front=True)
        if losses == 0:
            eventually(lambda: is_back(bench, desk))
    eventually(lambda: is_back(bench, desk))
    desk.holder.waits = False
    assert desk.receive()[0].claim.losses == 2


@pytest.mark.needs("losses")
def test_from_its_beginning_on_an_expiry_is_a_loss_and_an_orderly_return_is_none(
    bench: Bench, desk: Desk
) -> None:
    """The broker knows of the beginning; a second notice, or a late one, has no effect."""
    bench.publish("a")
    loser = bench.desk(seconds=LONG)
    loser.holder.waits = True
    for begins in (False, True):
        (message,) = loser.receive()
        if begins:
            assert loser.driver.begin([message.claim.tag] * 2) == [Answer.HELD] * 2
        assert loser.driver.requeue([message.claim.tag], orderly=True, front=True)
    (message,) = loser.receive()
    assert message.claim.losses == 0
    assert loser.driver.begin([message.claim.tag]) == [Answer.HELD]
    loser.extend(message, bench.shortest)
    loser.stop()
    eventually(lambda: is_back(bench, desk, loser))
    (again,) = desk.receive()
    assert loser.driver.begin([message.claim.tag]) == [Answer.LOST]
    assert (again.claim.deliveries, again.claim.losses) == (4, 1)


def test_a_token_grows_with_every_delivery(bench: Bench, desk: Desk) -> None:
    """It grows over losses, over orderly returns, and over later messages, such as a retry."""
    bench.publish("a")
    first = take_and_lose(bench, desk).claim.token
    (second,) = desk.receive()
    second.requeue()
    (third,) = desk.receive()
    third.ack()
    bench.publish("a retry")
    (fourth,) = desk.receive()
    tokens = [first, second.claim.token, third.claim.token, fourth.claim.token]
    assert tokens == sorted(set(tokens))


def receive_again(bench: Bench, desk: Desk, *, orderly: bool) -> Any:
    """Receive a message, return it, and return its next delivery."""
    bench.publish("a")
    (message,) = desk.receive()
    tags = [message.claim.tag]
    assert desk.driver.requeue(tags, orderly=orderly, front=True) == [Answer.HELD]
    (again,) = desk.receive()
    return again


@pytest.mark.parametrize("orderly", [True, False])
def test_a_returned_message_is_delivered_again(bench: Bench, desk: Desk, orderly: bool) -> None:
    """The message is unchanged, and every delivery counts."""
    again = receive_again(bench, desk, orderly=orderly)
    assert (again.payload, again.claim.deliveries) == ("a", 2)


@pytest.mark.needs("losses")
@pytest.mark.parametrize(("orderly", "losses"), [(True, 0), (False, 1)])
def test_an_orderly_return_is_not_a_loss(
    bench: Bench, desk: Desk, orderly: bool, losses: int
) -> None:
    """Only a return that is not orderly counts as a loss."""
    assert receive_again(bench, desk, orderly=orderly).claim.losses == losses


def test_nothing_of_a_former_holder_touches_the_next_lease(
    bench: Bench, desk: Desk, other: Desk
) -> None:
    """Extend, acknowledge, return and close are all answered with a loss and change nothing."""
    bench.publish("a")
    stale = take_and_lose(bench, other)
    (message,) = desk.receive()
    loser, tag = stale.desk, stale.claim.tag
    assert loser.extend(stale) is Answer.LOST
    # SQS does not show a message's holder: nothing is sent under a handle that may be stale.
    knows = loser.driver.capabilities.fences
    assert loser.extend(stale, late=True) is (Answer.LOST if knows else Answer.UNKNOWN)
    assert loser.driver.complete([tag]) == [Answer.LOST]
    assert loser.driver.requeue([tag], orderly=True, front=True) == [Answer.LOST]
    stale.ack()
    loser.close()
    assert bench.waiting() == 0
    assert desk.extend(message) is Answer.HELD
    message.ack()
    assert desk.holder.answers == [Answer.HELD]


def test_a_former_holder_that_rejects_changes_nothing(
    bench: Bench, desk: Desk, other: Desk
) -> None:
    """A late requeue does not run the message twice."""
    bench.publish("a")
    stale = take_and_lose(bench, other)
    (message,) = desk.receive()
    stale.reject(requeue=True)
    stale.desk.close()
    assert bench.waiting() == 0
    assert desk.extend(message) is Answer.HELD


@pytest.mark.needs("confirms")
def test_an_expired_lease_that_nobody_took_can_still_be_confirmed(bench: Bench) -> None:
    """Only a late extension confirms it; any other one of an expired lease is a loss."""
    bench.publish("a")
    with bench.desk(seconds=bench.shortest) as desk:
        (message,) = desk.receive()
        eventually(
            lambda: desk.extend(message, bench.shortest) is Answer.LOST, every=bench.shortest * 2
        )
        assert desk.extend(message, LONG, late=True) is Answer.HELD
        assert desk.extend(message, LONG) is Answer.HELD


@pytest.mark.needs("confirms")
def test_a_message_settled_late_by_its_holder_is_settled(bench: Bench, other: Desk) -> None:
    """A message whose lease expired can be acknowledged until another consumer takes it."""
    bench.publish("a")
    with bench.desk(seconds=bench.shortest) as desk:
        (message,) = desk.receive()
        eventually(
            lambda: desk.extend(message, bench.shortest) is Answer.LOST, every=bench.shortest * 2
        )
        assert desk.driver.complete([message.claim.tag]) == [Answer.HELD]
    assert other.driver.reap(limit=10) == []
    assert bench.waiting() == 0


def test_many_extensions_are_answered_one_by_one(bench: Bench, desk: Desk) -> None:
    """Of several leases only the settled one is lost."""
    bench.publish(*range(5))
    messages = desk.receive(5)
    messages[2].ack()
    assert [desk.extend(message) for message in messages].index(Answer.LOST) == 2
    assert desk.driver.extend([], timeout=1.0) == []
    assert desk.driver.complete([]) == []
