"""How often a broker that does not answer is asked: ever less, and never too late for a lease."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from celery_lease.worker.backoff import FIRST, JITTER, LONGEST, SHORTEST, Backoff
from unit.fake_broker import POLICY, Bench

FAR = math.inf


def waits(count: int, *, chance: float = 0.0, lease: float = FAR, left: float = FAR) -> list[float]:
    """Return the waits after so many silences in a row."""
    backoff = Backoff(lambda: chance)
    waited = []
    for _ in range(count):
        backoff.unanswered(0.0, lease=lease, left=left)
        waited.append(backoff.left(0.0))
    return waited


def test_each_silence_doubles_the_wait_up_to_the_longest() -> None:
    """Then it stays, however long the broker is away."""
    assert waits(7) == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, 16 * FIRST, LONGEST, LONGEST]
    assert waits(3000)[-1] == LONGEST


def test_chance_takes_off_its_share_and_no_more() -> None:
    """So workers that lost the same broker spread over half of the wait."""
    assert waits(6, chance=1.0) == [each * (1 - JITTER) for each in waits(6)]
    assert Backoff()._chance() != Backoff()._chance()


def test_no_wait_is_longer_than_the_shortest_lease_can_spare() -> None:
    """An eighth of it; what is acknowledged late must arrive before the message is run again."""
    assert max(waits(20, lease=8.0)) == 1.0


def test_the_nearer_a_deadline_the_sooner_is_asked() -> None:
    """Half of what is left, and in the end ten times a second."""
    assert waits(20, left=1.0)[-1] == 0.5
    assert waits(20, left=0.01)[-1] == SHORTEST


def test_an_answer_ends_the_waiting() -> None:
    """The next silence begins with the first wait again."""
    backoff = Backoff(lambda: 0.0)
    for _ in range(4):
        backoff.unanswered(0.0, lease=FAR, left=FAR)
    backoff.answered()
    assert backoff.left(0.0) == 0.0
    backoff.unanswered(0.0, lease=FAR, left=FAR)
    assert backoff.left(0.0) == FIRST


def outage(bench: Bench, seconds: float, step: float = 0.1) -> list[float]:
    """Let a task beat through an outage; return when the broker was asked."""
    held = next(iter(bench.leases.entries()))
    bench.driver.silent = True
    asked, ends = [], bench.clock.now() + seconds
    while bench.clock.now() < ends:
        bench.clock.advance(step)
        bench.beat(held)
        before = bench.driver.count("extend")
        bench.keeper.run_once()
        asked += [bench.clock.now()] * (bench.driver.count("extend") - before)
    bench.driver.silent = False
    return asked


def test_the_keeper_asks_a_silent_broker_ever_less_often(bench: Bench) -> None:
    """A minute without it, which a lease of five can spare, costs some 20 calls rather than 240."""
    bench.run(policy=replace(POLICY, extension=300.0, interval=60.0))
    bench.clock.advance(60.0)
    asked = outage(bench, 60.0)
    assert 12 <= len(asked) <= 40
    gaps = [after - before for before, after in pairwise(asked)]
    assert max(gaps) <= LONGEST + 0.2
    assert gaps[0] < gaps[-1]


def test_a_lease_is_saved_by_a_broker_that_comes_back_shortly_before_its_deadline(
    bench: Bench,
) -> None:
    """The last questions come close together: what was silent for 9.5 s is asked within 0.5 s."""
    held = bench.run()
    outage(bench, 9.5)
    for _ in range(4):
        bench.passed(0.1)
    assert held.lease.is_held
    assert held.lease.deadline > bench.clock.now() + 5.0


def test_what_a_worker_told_nobody_is_told_in_time(bench: Bench) -> None:
    """An acknowledgement waits no longer than the keeper does, also when no lease is left."""
    bench.run()
    bench.driver.silent = True
    bench.leases.complete("a")
    for _ in range(50):
        bench.passed(0.1)
    before = bench.driver.count("complete")
    assert before < 12
    bench.driver.silent = False
    for _ in range(13):
        bench.passed(0.1)
    assert bench.driver.count("complete") == before + 1
    assert not bench.driver.expiries


def test_a_pass_is_worth_it_again_when_the_wait_is_over(bench: Bench) -> None:
    """The keeper's thread sleeps no longer than that, and looks at its leases meanwhile."""
    bench.run()
    bench.clock.advance(3.0)
    bench.beat(next(iter(bench.leases.entries())))
    bench.driver.silent = True
    assert bench.passed().wait <= FIRST
