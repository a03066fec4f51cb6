"""What is counted and told of leases, through the table and the keeper that change them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_lease.core.delivery import Answer, Reaped
from celery_lease.core.stats import BOUNDS, MOST_PAIRS, OTHERS, Fact, RoundTripStats, label
from celery_lease.worker.entries import Ending
from unit.fake_broker import POLICY, Bench


def counts(bench: Bench, task: str = "t", queue: str = "q") -> dict[tuple[str, str], int]:
    """Return what was counted for one task and queue, by fact and detail."""
    return {
        (key.fact, key.detail): count
        for key, count in bench.leases.stats.counts.items()
        if (key.task, key.queue) == (task, queue)
    }


def news(bench: Bench) -> list[tuple[str, dict[str, Any]]]:
    """Return the events that wait to be sent."""
    return list(bench.leases.stats.news)


def test_a_lease_that_goes_well_is_granted_started_extended_and_completed(bench: Bench) -> None:
    """Each once; of the beats, those that the keeper saw."""
    held = bench.run()
    bench.passed(2.5)
    bench.beat(held)
    bench.beat(held)
    bench.passed(0.5)
    bench.leases.complete("a")
    bench.leases.complete("a")  # a second acknowledgement is none
    assert counts(bench) == {
        (Fact.GRANTED, ""): 1,
        (Fact.STARTED, ""): 1,
        (Fact.BEAT, ""): 2,  # the start counts as the first
        (Fact.EXTENDED, "held"): 1,
        (Fact.ENDED, "completed"): 1,
    }


def test_an_extension_is_counted_by_what_the_broker_said(bench: Bench) -> None:
    """No answer is a failure of its own kind, neither a renewal nor a loss."""
    held = bench.run()
    bench.clock.advance(2.5)
    bench.beat(held)
    bench.driver.silent = True
    bench.passed()
    assert counts(bench)[Fact.EXTENDED, "unknown"] == 1
    bench.driver.silent = False
    del bench.driver.expiries["a"]
    bench.passed(2.0)  # not at once: a broker that was silent is asked less often
    assert counts(bench)[Fact.EXTENDED, "lost"] == 1
    assert counts(bench)[Fact.LOST, "taken"] == 1


def test_a_loss_is_counted_once_by_its_reason_when_it_happens(bench: Bench) -> None:
    """Not when its task ends, which may be much later or never."""
    bench.run()
    bench.passed(10.5)
    bench.run("b", policy=replace(POLICY, max_duration=5.0, interval=1.0))
    bench.passed(10.5)
    bench.run("c")
    bench.leases.lost(["c"])
    bench.passed()
    lost = {detail: n for (fact, detail), n in counts(bench).items() if fact is Fact.LOST}
    assert lost == {"expired": 1, "max_duration": 1, "taken": 1}
    assert (Fact.ENDED, "lost") not in counts(bench)
    bench.leases.discard("a")
    assert counts(bench)[Fact.ENDED, "lost"] == 1


@pytest.mark.parametrize("ending", [Ending.HANDED_BACK, Ending.HANDED_OVER, Ending.STALLED])
def test_every_ending_has_a_count_of_its_own(bench: Bench, ending: Ending) -> None:
    """By the words of the enumeration, as a label's value may be written."""
    bench.run()
    bench.leases.requeue(["a"], ending=ending)
    assert counts(bench)[Fact.ENDED, label(ending)] == 1
    assert bench.leases.endings == {ending: 1}


def test_the_pairs_of_task_and_queue_that_are_told_apart_are_bounded(bench: Bench) -> None:
    """Whoever makes up names of tasks or queues fills no memory and no monitoring system."""
    for number in range(MOST_PAIRS + 50):
        bench.receive(str(number), task=f"t{number}")
    assert len(bench.leases.stats.counts) == MOST_PAIRS + 1
    assert counts(bench, *OTHERS) == {(Fact.GRANTED, ""): 50}


def test_nothing_is_told_while_nobody_listens(bench: Bench) -> None:
    """It would only fill memory."""
    bench.run()
    bench.leases.complete("a")
    assert news(bench) == []


def test_a_listener_hears_who_held_what_when_and_how_it_ended(bench: Bench) -> None:
    """With the time at which it happened: it may be sent much later."""
    bench.leases.stats.listening = True
    bench.run()
    started = bench.clock.wall().timestamp()
    bench.passed(10.5)
    lost = bench.clock.wall().timestamp()
    bench.leases.discard("a")
    kinds = [kind for kind, _ in news(bench)]
    assert kinds == ["lease-granted", "lease-started", "lease-lost", "lease-ended"]
    facts = [fields for _, fields in news(bench)]
    for each in facts:
        assert (each["uuid"], each["name"], each["lease"], each["token"], each["holder"]) == (
            *("id-a", "t", "a"),
            *(1, "w1"),
        )
    assert (facts[0]["queue"], facts[0]["deliveries"]) == ("q", 1)
    assert [each["timestamp"] for each in facts] == [started, started, lost, lost]
    assert facts[2]["reason"] == "expired"
    assert facts[3]["ending"] == "lost"


def test_of_what_the_reaper_returns_only_lost_leases_are_told(bench: Bench) -> None:
    """Not a plain message, one that could not be returned, or one that was given up before."""
    stats = bench.leases.stats
    stats.listening = True
    about = {"task": "t", "id": "id-a", "worker": "w2"}
    stats.recovered(Reaped(tag="a", queue="q", late=1.25, about=about))
    for other in ({"leased": False}, {"error": "broken"}, {"rested": True}):
        stats.recovered(Reaped(tag="b", queue="q", late=1.0, about=about, **other))
    ((kind, fields),) = news(bench)
    assert kind == "lease-recovered"
    assert (fields["uuid"], fields["holder"], fields["late"]) == ("id-a", "w2", 1.25)


def test_a_pass_of_the_keeper_that_comes_late_is_seen(bench: Bench) -> None:
    """By how much; one that was woken early is not late at all."""
    stats = bench.leases.stats
    wait = bench.passed().wait
    bench.passed(wait + 3.0)
    assert stats.keeper_lag == pytest.approx(3.0)
    bench.passed(wait / 2)
    assert stats.keeper_lag == 0.0


def test_round_trips_are_sorted_by_how_long_they_took(bench: Bench) -> None:
    """Also one without an answer: that is how a slow broker shows."""
    held = bench.run()
    bench.clock.advance(2.5)
    bench.beat(held)
    bench.driver.silent = True
    bench.driver.meanwhile = lambda: bench.clock.advance(0.3)
    bench.passed()
    round_trips = bench.leases.stats.round_trips
    assert round_trips.seconds == pytest.approx(0.3)
    assert round_trips.counts[BOUNDS.index(0.5)] == sum(round_trips.counts) == 1


def test_a_bound_belongs_to_the_class_below_it() -> None:
    """As Prometheus has it: less or equal."""
    round_trips, heard = RoundTripStats(), []
    round_trips.observer = heard.append
    for seconds in (BOUNDS[0], BOUNDS[0] * 1.5, BOUNDS[-1] * 2):
        round_trips.add(seconds)
    assert round_trips.counts[0] == round_trips.counts[1] == round_trips.counts[-1] == 1
    assert len(heard) == 3


def test_an_answer_has_the_three_values_that_are_counted() -> None:
    """The values are labels of a metric: part of the documented names."""
    assert {answer.value for answer in Answer} == {"held", "lost", "unknown"}
