"""One look of the watchdog: whom it ends, whom it leaves alone, and when its worker leaves.

Time is the test's own; the pool does what the test says, and tells what was asked of it.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease import board as beatboard
from celery_lease.board import Outcome
from celery_lease.core.policy import Mode, OnLost
from celery_lease.worker.diagnosis import Diagnosis, Doing
from celery_lease.worker.entries import Ending
from celery_lease.worker.watchdog import LEAVING, LONGEST_WAIT, REST_WAIT, SLEPT, Watchdog
from unit.fake_broker import POLICY, Bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_lease.worker.entries import LeaseEntry

WATCHED = replace(POLICY, watchdog_threshold=3.0)


class Kennel:
    """A worker on its bench, with a watchdog and a pool that obeys the test."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.ended: list[str] = []
        self.left = 0
        self.can_end = True
        self.dying = 0.0  #: seconds that a process takes to end
        self.stopping = False
        self.doing = Doing.BLOCKED
        self.meanwhile: Callable[[], None] = lambda: None  # while a task is looked at
        self.running: set[str] = set()
        self.pool: Any = SimpleNamespace(
            slots=lambda: 2,
            running=lambda: set(self.running),
            alone=True,
            diagnose=self._diagnose,
            end=self._end,
            stopping=lambda: self.stopping,
            stop=self._stop,
            leave=self._leave,
        )
        self.watchdog = Watchdog(self.bench.leases, self.pool)

    def run(self, tag: str = "a", **options: object) -> LeaseEntry:
        self.running.add(tag)
        return self.bench.run(tag, **options)

    def passed(self, seconds: float) -> float:
        """Let time pass with keeper and watchdog at work; return the watchdog's next wait."""
        wait = math.nan
        for _ in range(round(seconds / 0.5)):
            self.bench.clock.advance(0.5)
            self.bench.keeper.run_once()
            wait = self.watchdog.run_once()
        return wait

    def _diagnose(self, _held: LeaseEntry) -> Diagnosis:
        self.meanwhile()
        return Diagnosis(self.doing, stack="  in somewhere")

    def _end(self, held: LeaseEntry, release: Callable[[], None]) -> bool:
        self.ended.append(held.lease.claim.tag)
        self.bench.clock.advance(self.dying)
        release()
        if self.can_end:
            self.running.discard(held.lease.claim.tag)
        return self.can_end

    def _stop(self) -> None:
        self.stopping = True

    def _leave(self) -> None:
        self.left += 1


@pytest.fixture
def kennel() -> Iterator[Kennel]:
    """A worker with two slots and nothing to do."""
    kennel = Kennel()
    yield kennel
    kennel.bench.leases.close()


def test_silence_beyond_the_threshold_ends_the_task_and_releases_its_message(
    kennel: Kennel, caplog: pytest.LogCaptureFixture
) -> None:
    """Long before its lease of 10 s expires, as a loss, and with a line that says what it did."""
    kennel.bench.leases.stats.listening = True
    kennel.run(policy=WATCHED)
    kennel.passed(2.5)
    assert kennel.ended == []
    with caplog.at_level(logging.ERROR):
        kennel.passed(0.5)
    assert kennel.ended == ["a"]
    (call,) = [call for call in kennel.bench.driver.calls if call.name == "requeue"]
    assert (call.what, call.options["orderly"]) == (["a"], False)
    assert kennel.bench.leases.endings[Ending.STALLED] == 1
    assert "has not beaten for 3.0 s" in caplog.text
    assert "blocked in a call" in caplog.text
    assert "in somewhere" in caplog.text
    assert kennel.watchdog.counters()["watchdog.stalled.count"] == 1
    ((kind, event),) = [each for each in kennel.bench.leases.stats.news if "silent" in each[1]]
    assert (kind, event["uuid"], event["ended"]) == ("lease-stalled", "id-a", True)


def test_a_stall_is_told_with_the_time_at_which_it_was_found(kennel: Kennel) -> None:
    """By the time that the process has ended, the message may run elsewhere."""
    kennel.bench.leases.stats.listening = True
    kennel.dying = 2.0
    kennel.run(policy=WATCHED)
    kennel.passed(3.0)
    times = {kind: event["timestamp"] for kind, event in kennel.bench.leases.stats.news}
    assert times["lease-ended"] - times["lease-stalled"] == 2.0


def test_without_a_threshold_a_task_is_ended_when_its_lease_expires(kennel: Kennel) -> None:
    """Not a moment before the last beat plus the extension."""
    held = kennel.run()
    kennel.passed(2)
    kennel.bench.beat(held)
    kennel.passed(9.5)
    assert kennel.ended == []
    kennel.passed(0.5)
    assert kennel.ended == ["a"]


def test_a_task_that_has_not_written_its_start_counts_from_its_acceptance(kennel: Kennel) -> None:
    """A green pool reports a task before it switches to it, and a process may wait for its turn."""
    kennel.passed(60)
    kennel.running.add("a")
    kennel.bench.receive("a", policy=WATCHED)
    assert kennel.bench.leases.start("a")
    kennel.bench.leases.accepted("a", 1)
    kennel.watchdog.run_once()
    kennel.passed(10)
    assert kennel.ended == []
    kennel.passed(10)
    assert kennel.ended == ["a"]


def test_a_task_that_beats_is_never_ended(kennel: Kennel) -> None:
    """For longer than threshold and lease."""
    held = kennel.run(policy=WATCHED)
    for _ in range(15):
        kennel.passed(1)
        kennel.bench.beat(held)
    assert kennel.ended == []


def test_a_quiet_period_is_respected_to_its_end(kennel: Kennel) -> None:
    """Of 8 s, with a threshold of 3 s."""
    held = kennel.run(policy=WATCHED)
    kennel.bench.write(held, beatboard.QUIET, kennel.bench.clock.now() + 8)
    kennel.passed(7.5)
    assert kennel.ended == []
    kennel.passed(0.5)
    assert kennel.ended == ["a"]


@pytest.mark.parametrize(
    "policy",
    [
        replace(POLICY, mode=Mode.OBSERVE),
        replace(POLICY, mode=Mode.OBSERVE, watchdog_threshold=3.0),
        replace(POLICY, on_lost=OnLost.CONTINUE),
    ],
)
def test_who_is_to_run_on_runs_on(kennel: Kennel, policy: object) -> None:
    """Observed tasks always; those that ignore a loss as long as no threshold is set."""
    kennel.run(policy=policy)
    kennel.passed(30)
    assert kennel.ended == []


def test_a_threshold_of_its_own_holds_for_tasks_that_ignore_a_loss(kennel: Kennel) -> None:
    """It was set on purpose."""
    kennel.run(policy=replace(WATCHED, on_lost=OnLost.CONTINUE))
    kennel.passed(3)
    assert kennel.ended == ["a"]


def test_a_daemon_is_silent_by_nature_and_ended_only_when_its_lease_is_lost(
    kennel: Kennel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no beat at which it could be told that it reached ``lease_max_duration``."""
    monkeypatch.setattr("celery_lease.worker.keeper.is_alive", lambda _: True)
    kennel.run(policy=replace(WATCHED, mode=Mode.DAEMON, max_duration=20.0))
    kennel.passed(19.5)
    assert kennel.ended == []
    kennel.passed(1)
    assert kennel.ended == ["a"]


def test_after_a_pause_of_its_own_tasks_have_a_whole_threshold_to_find_out(
    kennel: Kennel,
) -> None:
    """A suspended host: nobody was silent, nobody could speak."""
    kennel.run(policy=WATCHED)
    kennel.passed(1)
    kennel.bench.clock.advance(SLEPT + 60)
    kennel.watchdog.run_once()
    kennel.passed(2.5)
    assert kennel.ended == []
    kennel.passed(0.5)
    assert kennel.ended == ["a"]


def test_a_beat_while_it_is_looked_at_saves_a_task(kennel: Kennel) -> None:
    """To find out what it does takes a moment."""
    held = kennel.run(policy=WATCHED)
    kennel.meanwhile = lambda: kennel.bench.beat(held)
    kennel.passed(6)
    assert kennel.ended == []


def test_a_process_that_went_on_to_another_task_is_not_hit(kennel: Kennel) -> None:
    """The main loop has not heard yet that the silent one ended, or which process took the next."""
    kennel.run(policy=WATCHED)

    def next_task() -> None:
        kennel.meanwhile = lambda: None
        kennel.run("b", pid=None, policy=WATCHED)

    kennel.meanwhile = next_task
    kennel.passed(3)
    assert kennel.ended == []


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.DISCARDED, Outcome.HANDED_OVER])
def test_a_task_that_has_ended_is_not_silent(kennel: Kennel, outcome: Outcome) -> None:
    """The main loop has only not heard of it yet."""
    held = kennel.run(policy=WATCHED)
    assert held.slot
    kennel.bench.board.write_outcome(held.slot, outcome)
    kennel.passed(6)
    assert kennel.ended == []


def test_a_dead_process_is_left_to_its_pool(kennel: Kennel) -> None:
    """Which knows how it ended."""
    kennel.run(policy=WATCHED)
    kennel.doing = Doing.GONE
    kennel.passed(4)
    assert kennel.ended == []


def test_a_worker_leaves_when_every_slot_is_disowned_and_not_before(kennel: Kennel) -> None:
    """Two slots; what waits goes back, and the worker has some seconds to stop in order."""
    kennel.can_end = False
    kennel.run(policy=WATCHED)
    kennel.passed(4)
    assert not kennel.stopping
    kennel.run("b", policy=WATCHED)
    kennel.bench.receive("waiting")
    kennel.passed(3)
    assert kennel.stopping
    assert len(kennel.bench.leases) == 0
    assert kennel.left == 0
    kennel.passed(LEAVING + 1)
    assert kennel.left > 0
    assert kennel.watchdog.counters()["watchdog.disowned.count"] == 2


def test_a_disowned_task_that_ends_frees_its_slot(kennel: Kennel) -> None:
    """Two were disowned, but never at the same time."""
    kennel.can_end = False
    kennel.run(policy=WATCHED)
    kennel.passed(4)
    kennel.running.discard("a")
    kennel.run("b", policy=WATCHED)
    kennel.passed(4)
    assert kennel.ended == ["a", "b"]
    assert not kennel.stopping


def test_a_stopping_worker_leaves_its_disowned_tasks_behind_when_the_others_are_done(
    kennel: Kennel,
) -> None:
    """Its pool would wait for them for ever."""
    kennel.can_end = False
    kennel.run(policy=WATCHED)
    other = kennel.run("b")
    kennel.passed(4)
    kennel.stopping = True
    for _ in range(10):
        kennel.passed(1)
        kennel.bench.beat(other)
    assert kennel.left == 0
    kennel.bench.leases.complete("b")
    kennel.passed(1)
    assert kennel.left > 0


def test_a_watchdog_with_nobody_to_watch_seldom_looks(kennel: Kennel) -> None:
    """And looks in time at who is about to be due."""
    assert kennel.watchdog.run_once() == LONGEST_WAIT
    kennel.run(policy=replace(WATCHED, watchdog_threshold=1.25))
    assert kennel.passed(0.5) == pytest.approx(0.75)


def test_the_watchdog_of_a_worker_that_rests_waits_for_the_next_lease(kennel: Kennel) -> None:
    """But not while a task that could not be ended holds one of its slots."""
    kennel.bench.leases.resting = True
    assert kennel.watchdog.run_once() == REST_WAIT
    kennel.can_end = False
    kennel.run(policy=WATCHED)
    kennel.passed(4)
    kennel.bench.leases.resting = True
    assert kennel.watchdog.run_once() == LONGEST_WAIT
