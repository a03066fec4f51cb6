"""What every driver does, whichever the broker: the contract of ``core.delivery``."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.core.delivery import Answer
from harness.lease_desk import Bench, Desk, bodies
from harness.waiting import always, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_lease.core.delivery import Reaped

pytestmark = pytest.mark.compat

SHORT = 0.3  #: seconds; a lease to be lost
LONG = 60.0


@pytest.fixture
def bench(driver_under_test: Bench) -> Bench:
    """The broker under test."""
    return driver_under_test


@pytest.fixture
def desk(bench: Bench) -> Iterator[Desk]:
    """A consumer with long leases."""
    with bench.desk(seconds=LONG) as desk:
        yield desk


@pytest.fixture
def other(bench: Bench) -> Iterator[Desk]:
    """A second one, as in another worker."""
    with bench.desk(seconds=LONG) as desk:
        yield desk


def is_back(bench: Bench, *reapers: Desk) -> bool:
    """Whether a message is in its queue again, by a reaper or by the broker itself."""
    return sum(len(each.driver.reap(limit=10)) for each in reapers) + bench.waiting() > 0


def take_and_lose(bench: Bench, reaper: Desk) -> Any:
    """Let a message's lease expire and return the message, as its former holder still sees it."""
    loser = bench.desk(seconds=SHORT)
    (message,) = loser.receive()
    loser.stop()
    message.desk = loser
    back = "the message of the expired lease is back"
    eventually(lambda: is_back(bench, reaper, loser), what=back)
    return message


def test_a_claim_is_the_first_delivery_and_hides_the_message(
    bench: Bench, desk: Desk, other: Desk
) -> None:
    """Nobody else gets a message under a lease, and the claim says how often it was delivered."""
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
    """An extension moves the expiry, counted from when it is asked."""
    bench.publish("a")
    with bench.desk(seconds=1.5) as desk:
        (message,) = desk.receive()
        assert desk.extend(message, LONG) is Answer.HELD
        assert always(lambda: not is_back(bench, other, desk), during=2.0, every=0.2)
        assert desk.extend(message, LONG) is Answer.HELD


def test_an_extension_can_shorten_a_lease(bench: Bench, desk: Desk, other: Desk) -> None:
    """An expiry is what was asked last, not the latest ever asked."""
    bench.publish("a")
    (message,) = desk.receive()
    assert desk.extend(message, SHORT) is Answer.HELD
    desk.stop()
    eventually(lambda: is_back(bench, other, desk))
    assert bodies(other.receive()) == ["a"]


@pytest.mark.needs("reaps")
def test_an_expired_lease_is_reaped_and_counted_as_a_loss(bench: Bench, desk: Desk) -> None:
    """A reaper returns the message and says whose it was; the next claim knows of the loss."""
    bench.publish("a")
    loser = bench.desk(seconds=SHORT)
    (message,) = loser.receive()
    loser.stop()
    (reaped,) = eventually(lambda: desk.driver.reap(limit=10))
    assert reaped.tag == message.claim.tag
    assert reaped.queue == "q"
    assert reaped.late >= 0
    assert reaped.about["id"] == loser.holder.claims[0].tag.partition("#")[0]
    (again,) = desk.receive()
    assert (again.claim.deliveries, again.claim.losses) == (2, 1)


def test_a_token_grows_with_every_delivery(bench: Bench, desk: Desk) -> None:
    """Over losses, over orderly returns, and over messages sent later, as a retry is."""
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
    """Receive a message, hand it back, and return its next delivery."""
    bench.publish("a")
    (message,) = desk.receive()
    tags = [message.claim.tag]
    assert desk.driver.hand_back(tags, orderly=orderly, front=True) == [Answer.HELD]
    (again,) = desk.receive()
    return again


@pytest.mark.parametrize("orderly", [True, False])
def test_a_returned_message_is_delivered_again(bench: Bench, desk: Desk, orderly: bool) -> None:
    """As it was, and every delivery counts."""
    again = receive_again(bench, desk, orderly=orderly)
    assert (again.payload, again.claim.deliveries) == ("a", 2)


@pytest.mark.needs("tells")
@pytest.mark.parametrize(("orderly", "losses"), [(True, 0), (False, 1)])
def test_an_orderly_return_is_not_a_loss(
    bench: Bench, desk: Desk, orderly: bool, losses: int
) -> None:
    """Only a disorderly one is."""
    assert receive_again(bench, desk, orderly=orderly).claim.losses == losses


def test_nothing_of_a_former_holder_touches_the_next_lease(
    bench: Bench, desk: Desk, other: Desk
) -> None:
    """Extend, acknowledge, hand back and close are all answered with a loss and change nothing."""
    bench.publish("a")
    stale = take_and_lose(bench, other)
    (message,) = desk.receive()
    loser, tag = stale.desk, stale.claim.tag
    assert loser.extend(stale) is Answer.LOST
    assert loser.extend(stale, late=True) is Answer.LOST
    assert loser.driver.complete([tag]) == [Answer.LOST]
    assert loser.driver.hand_back([tag], orderly=True, front=True) == [Answer.LOST]
    stale.ack()
    loser.close()
    assert bench.waiting() == 0
    assert desk.extend(message) is Answer.HELD
    message.ack()
    assert desk.holder.answers == [Answer.HELD]


def test_a_former_holder_that_rejects_changes_nothing(
    bench: Bench, desk: Desk, other: Desk
) -> None:
    """A late requeue would run the message twice; it does not."""
    bench.publish("a")
    stale = take_and_lose(bench, other)
    (message,) = desk.receive()
    stale.reject(requeue=True)
    stale.desk.close()
    assert bench.waiting() == 0
    assert desk.extend(message) is Answer.HELD


def test_an_expired_lease_that_nobody_took_can_still_be_confirmed(bench: Bench) -> None:
    """Only for who asks for it: a plain extension of an expired lease is a loss."""
    bench.publish("a")
    with bench.desk(seconds=SHORT) as desk:
        (message,) = desk.receive()
        eventually(lambda: desk.extend(message, SHORT) is Answer.LOST, every=SHORT * 2)
        assert desk.extend(message, LONG, late=True) is Answer.HELD
        assert desk.extend(message, LONG) is Answer.HELD


def test_a_message_settled_late_by_its_holder_is_settled(bench: Bench, other: Desk) -> None:
    """Expired but untaken, the message is still the holder's to acknowledge."""
    bench.publish("a")
    with bench.desk(seconds=SHORT) as desk:
        (message,) = desk.receive()
        eventually(lambda: desk.extend(message, SHORT) is Answer.LOST, every=SHORT * 2)
        assert desk.driver.complete([message.claim.tag]) == [Answer.HELD]
    assert other.driver.reap(limit=10) == []
    assert bench.waiting() == 0


def test_many_extensions_are_answered_one_by_one(bench: Bench, desk: Desk) -> None:
    """A settled lease among held ones is the only one that is lost."""
    bench.publish(*range(5))
    messages = desk.receive(5)
    messages[2].ack()
    assert [desk.extend(message) for message in messages].index(Answer.LOST) == 2
    assert desk.driver.extend([], timeout=1.0) == []
    assert desk.driver.complete([]) == []


def test_a_closing_channel_returns_its_messages_in_their_order(bench: Bench, desk: Desk) -> None:
    """The oldest is the next to be delivered, before what was sent meanwhile."""
    bench.publish("a", "b", "c")
    with bench.desk() as closing:
        # Only one of the two may take them: the other has not been turned yet.
        assert bodies(closing.receive(3)) == ["a", "b", "c"]
        bench.publish("d")
    assert bodies(desk.receive(4)) == ["a", "b", "c", "d"]


@pytest.mark.needs("tells")
def test_what_a_closing_channel_returns_is_not_lost(bench: Bench, desk: Desk) -> None:
    """It is an orderly return."""
    bench.publish("a")
    with bench.desk() as closing:
        closing.receive()
    (message,) = desk.receive()
    assert message.claim.losses == 0


@pytest.mark.parametrize("settle", ["ack", "reject", "requeue"])
def test_what_is_settled_after_its_channel_closed_changes_nothing(
    bench: Bench, desk: Desk, other: Desk, settle: str
) -> None:
    """A task that was ended is told of late, when the worker has another connection.

    It went to kombu, which has no connection there any more: ``AttributeError: 'NoneType' object
    has no attribute 'client'``, the end of the worker.
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
    """The channel is gone, the lease is not: it can be extended and completed."""
    bench.publish("runs", "waits")
    desk = bench.desk()
    runs, _ = desk.receive(2)
    desk.holder.kept.add(runs.claim.tag)
    desk.connection.release()
    assert bodies(other.receive()) == ["waits"]
    assert other.receives_nothing()
    assert desk.extend(runs) is Answer.HELD
    assert desk.driver.complete([runs.claim.tag]) == [Answer.HELD]
    desk.driver.close()


def test_a_rejected_message_goes_to_the_back_or_away(bench: Bench, desk: Desk) -> None:
    """A requeue is the broker's own, without the requeued message overtaking others."""
    bench.publish("a", "b")
    a, b = desk.receive(2)
    bench.publish("c")
    a.reject(requeue=True)
    b.reject()
    assert sorted(bodies(desk.receive(2))) == ["a", "c"]
    assert desk.receives_nothing()


@pytest.mark.parametrize("settle", ["ack", "reject", "requeue"])
def test_a_settled_message_frees_its_place_in_the_prefetch_window(
    bench: Bench, settle: str
) -> None:
    """The window holds what it says, and every way of settling opens it by one."""
    bench.publish("a", "b", "c")
    with bench.desk(prefetch=2) as desk:
        first, _ = desk.receive(2)
        assert desk.receives_nothing()
        getattr(first, settle)()
        desk.receive()
        assert desk.receives_nothing()


@pytest.mark.needs("reaps")
def test_reapers_that_sweep_at_once_return_each_message_once(bench: Bench) -> None:
    """No message is returned by two, none is left, and no call returns more than it may."""
    bench.publish(*range(60))
    with bench.desk(seconds=SHORT) as loser, bench.desk("elsewhere") as reaper:
        tags = {message.claim.tag for message in loser.receive(60)}
        loser.stop()
        time.sleep(SHORT * 2)

        def sweep(_: int) -> list[Reaped]:
            reaped: list[Reaped] = reaper.driver.reap(limit=7)
            assert len(reaped) <= 7
            return reaped

        with ThreadPoolExecutor(4) as threads:
            swept = [each.tag for batch in threads.map(sweep, range(16)) for each in batch]
        assert sorted(swept) == sorted(tags)
        assert bench.waiting() == 60
