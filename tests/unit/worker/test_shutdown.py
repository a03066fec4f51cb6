"""What a stopping worker does with its leases, pass by pass; time is the test's own."""

from __future__ import annotations

import logging
import re
import signal
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease import board as beatboard
from celery_lease.board import Outcome
from celery_lease.core.delivery import Answer
from celery_lease.core.loss import FLAG_SHUTDOWN, LossReason
from celery_lease.core.stats import Fact
from celery_lease.worker.entries import Ending
from celery_lease.worker.shutdown import FOR_KEYS, HAND_OVER_TIME, LOOK_INTERVAL, SILENCE, Shutdown
from unit.fake_broker import POLICY, Bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_lease.worker.entries import LeaseEntry

#: Leases of a minute, so that they outlive every shutdown here.
POLICY = replace(POLICY, extension=60.0, interval=10.0, shutdown_timeout=10.0)
INTERRUPTIBLE = replace(POLICY, interruptible=True)
PATIENT = replace(POLICY, shutdown_timeout=30.0)


#: What the line at the end counts, each run once.
SUMMED_UP = [
    each
    for each in Ending
    if each not in {Ending.PROCESS_DIED, Ending.STALLED, *FOR_KEYS} or each is Ending.PARKED
]


class Pool:
    """A pool that notes what it is asked, and can end tasks or not."""

    def __init__(self, *, kills: bool) -> None:
        self.kills = kills
        self.ended: list[str] = []
        self.left = 0
        self.failures = 0
        self.hangs_in = ""

    def adapter(self) -> Any:
        return SimpleNamespace(
            end=self._end, leave=self._leave, hangs_in=lambda: self.hangs_in, failed=self._fail
        )

    def _end(self, held: LeaseEntry, release: Callable[[], None]) -> bool:
        self.ended.append(held.lease.claim.tag)
        release()
        return self.kills

    def _leave(self) -> None:
        self.left += 1

    def _fail(self) -> None:
        self.failures += 1


class Stopping(Bench):
    """A bench whose worker can be asked to stop."""

    def __init__(self, *, kills: bool = True) -> None:
        super().__init__(POLICY)
        self.pool = Pool(kills=kills)
        self.shutdown = Shutdown(self.leases, self.pool.adapter())

    def stop(self) -> None:
        """Ask the worker to stop, and let the keeper look once."""
        self.shutdown.ask()
        self.shutdown.run_once()

    def look(self, seconds: float = 0.0) -> None:
        """Let time pass, then let the keeper look once."""
        self.clock.advance(seconds)
        self.shutdown.run_once()

    def ends(self, held: LeaseEntry, outcome: Outcome) -> None:
        """Let a task process say how its task ended."""
        assert held.slot
        self.board.write_outcome(held.slot, outcome)


@pytest.fixture
def bench() -> Iterator[Stopping]:
    """Return a worker without leases."""
    bench = Stopping()
    yield bench
    bench.leases.close()


def test_asking_does_nothing_but_set_flags(bench: Stopping) -> None:
    """It may be called in a signal handler: no broker call, no board, until the keeper's pass."""
    held = bench.run()
    bench.receive("b")
    bench.shutdown.ask()
    assert not bench.leases.intake.is_open  # a solo worker may take a message before that pass
    assert bench.driver.calls == []
    assert bench.flags_of(held) == 0


def test_asking_in_a_signal_handler_waits_for_no_lock(bench: Stopping) -> None:
    """The handler interrupts a main thread while the keeper's thread holds the table's lock."""
    locked, release = threading.Event(), threading.Event()

    def hold() -> None:
        with bench.leases.lock:
            locked.set()
            release.wait(20)

    keeper = threading.Thread(target=hold)
    keeper.start()
    former = signal.signal(signal.SIGUSR1, lambda *_: bench.shutdown.ask())
    try:
        assert locked.wait(20)
        signal.raise_signal(signal.SIGUSR1)
        assert bench.leases.intake.stopping
        assert not release.is_set()
    finally:
        signal.signal(signal.SIGUSR1, former)
        release.set()
        keeper.join()


def test_what_waits_goes_back_in_one_call_oldest_first_in_line(bench: Stopping) -> None:
    """Also what was given to the pool; newest first, as each is put in front of the queue."""
    bench.run("running")
    for tag in ("a", "b"):
        bench.receive(tag)
    bench.receive("in the pool")
    assert bench.leases.start("in the pool")
    bench.stop()
    (call,) = [each for each in bench.driver.calls if each.name == "requeue"]
    assert call.what == ["in the pool", "b", "a"]
    assert call.options == {"orderly": True, "front": True}
    assert len(bench.leases) == 1
    assert bench.leases.endings == {Ending.HANDED_BACK: 3}


def test_what_arrives_after_the_door_was_closed_goes_back_at_the_next_look(bench: Stopping) -> None:
    """The broker hands it over in the very moment of the shutdown."""
    bench.run("running")
    bench.stop()
    bench.receive("late")
    assert bench.leases.start("late") is None
    bench.look()
    assert bench.driver.sent("requeue") == ["late"]


def test_no_message_is_taken_once_the_keeper_has_looked(bench: Stopping) -> None:
    """The channel asks ``backlogged`` before it takes another."""
    assert not bench.leases.backlogged
    bench.stop()
    assert bench.leases.backlogged


def test_only_interruptible_tasks_are_told_at_once(bench: Stopping) -> None:
    """The others have their time; all of them can read that the worker stops."""
    told, left = bench.run("told", policy=INTERRUPTIBLE), bench.run("left")
    bench.stop()
    assert bench.flags_of(told) == FLAG_SHUTDOWN
    assert bench.flags_of(left) == 0
    assert bench.gate(told) == 0.0
    assert bench.gate(left) > bench.clock.now()


def test_an_interruptible_task_that_starts_as_the_door_closes_is_told_too(bench: Stopping) -> None:
    """A process takes it from the pool's queue just before what waits goes back.

    Removed: the telling at each pass (made in ``_begin`` alone); failed with: ``0 == 8``.
    """
    held = bench.receive("a", policy=INTERRUPTIBLE)
    assert bench.leases.start("a")
    settle = bench.leases.settle_outcomes

    def meanwhile() -> None:
        bench.write(held, beatboard.STARTED)
        settle()

    bench.leases.settle_outcomes = meanwhile  # type: ignore[method-assign]
    bench.stop()
    assert bench.flags_of(held) == FLAG_SHUTDOWN


def test_a_task_out_of_time_is_told_then_ended_and_its_message_released(bench: Stopping) -> None:
    """Told after its ten seconds, ended two later; the release is no loss, the exit code 1."""
    held = bench.run()
    bench.stop()
    bench.look(9.9)
    assert bench.flags_of(held) == 0
    bench.look(0.2)
    assert bench.flags_of(held) == FLAG_SHUTDOWN
    bench.look(HAND_OVER_TIME - 0.3)
    assert bench.pool.ended == []
    bench.look(0.3)
    assert bench.pool.ended == ["a"]
    assert bench.pool.failures == 1
    (call,) = [each for each in bench.driver.calls if each.name == "requeue"]
    assert call.options == {"orderly": True, "front": True}
    assert bench.leases.endings == {Ending.ENDED: 1}
    assert bench.pool.left == 0  # nothing of it runs any more: the worker ends by itself


def test_each_task_has_its_own_time(bench: Stopping) -> None:
    """The patient one goes on when the other one is ended, and is ended in its turn."""
    bench.run("patient", policy=PATIENT)
    bench.run("other")
    bench.stop()
    bench.look(10.0 + HAND_OVER_TIME)
    assert bench.pool.ended == ["other"]
    bench.look(20.0)
    assert bench.pool.ended == ["other", "patient"]


def test_a_cold_shutdown_leaves_no_task_any_time(bench: Stopping) -> None:
    """Told at once, ended two seconds later, whatever its own option says."""
    held = bench.run(policy=PATIENT)
    bench.stop()
    bench.look(1.0)
    assert bench.flags_of(held) == 0
    bench.shutdown.hurry()
    bench.look()
    assert bench.flags_of(held) == FLAG_SHUTDOWN
    bench.look(HAND_OVER_TIME)
    assert bench.pool.ended == ["a"]


def test_a_soft_shutdown_leaves_a_task_its_own_time_or_less(bench: Stopping) -> None:
    """The earliest end counts, of several that were asked for and of the task's own."""
    patient, other = bench.run("patient", policy=PATIENT), bench.run("other")
    bench.stop()
    for seconds in (20.0, 15.0, 25.0):
        bench.shutdown.hurry(seconds)
    bench.look(10.0)
    assert (bench.flags_of(patient), bench.flags_of(other)) == (0, FLAG_SHUTDOWN)
    bench.look(5.0)
    assert bench.flags_of(patient) == FLAG_SHUTDOWN


def test_a_told_task_that_hands_over_is_not_ended(bench: Stopping) -> None:
    """Its process says so on the board; its message goes back and counts as handed over."""
    held = bench.run(policy=INTERRUPTIBLE)
    bench.stop()
    bench.ends(held, Outcome.HANDED_OVER)
    bench.look()
    assert bench.driver.sent("requeue") == ["a"]
    assert bench.leases.endings == {Ending.HANDED_OVER: 1}
    bench.look(60.0)
    assert bench.pool.ended == []


@pytest.mark.parametrize(
    ("outcome", "call", "ending"),
    [
        (Outcome.DONE, "complete", Ending.COMPLETED),
        (Outcome.HANDED_OVER, "requeue", Ending.HANDED_OVER),
        (Outcome.DISCARDED, "requeue", Ending.LOST),
    ],
)
def test_what_a_task_process_has_ended_is_settled_without_the_pool_s_word(
    bench: Stopping, outcome: Outcome, call: str, ending: Ending
) -> None:
    """The main loop, which hears of it, sleeps in the signal handler."""
    held = bench.run()
    bench.stop()
    bench.ends(held, outcome)
    bench.look(LOOK_INTERVAL)
    assert bench.driver.sent(call) == ["a"]
    assert bench.leases.endings == {ending: 1}
    assert len(bench.leases) == 0


def test_a_task_that_has_said_nothing_is_not_settled(bench: Stopping) -> None:
    """It runs; its lease is kept for as long as it has time."""
    bench.run()
    bench.stop()
    bench.look(5.0)
    assert bench.driver.calls == []
    assert len(bench.leases) == 1


def test_leases_are_extended_while_the_worker_waits(bench: Stopping) -> None:
    """The keeper goes on; only what waits has gone back."""
    held = bench.run(policy=PATIENT)
    bench.stop()
    bench.clock.advance(15.0)
    bench.beat(held)
    assert bench.passed().extended == 1
    bench.look()
    assert bench.driver.expiries["a"] == bench.clock.now() + 60.0


def test_the_worker_leaves_once_all_are_gone_if_a_task_could_only_be_disowned() -> None:
    """A thread cannot be killed: its message is released, and the process ends under it."""
    bench = Stopping(kills=False)
    bench.run("deaf")
    bench.run("patient", policy=PATIENT)
    bench.stop()
    bench.look(10.0 + HAND_OVER_TIME)
    assert bench.pool.left == 0  # the patient one has time left
    bench.leases.complete("patient")
    bench.look()
    assert bench.pool.left == 1


def test_a_worker_without_tasks_leaves_a_broker_that_is_silent(
    bench: Stopping, caplog: pytest.LogCaptureFixture
) -> None:
    """Its main loop waits for an answer that does not come; one that comes ends the count."""
    bench.stop()
    bench.pool.hangs_in = "amqp.channel.close, line 7"
    bench.look()
    bench.look(SILENCE - 1)
    bench.pool.hangs_in = ""
    bench.look()
    bench.pool.hangs_in = "amqp.channel.close, line 7"
    bench.look()
    bench.look(SILENCE - 1)
    assert bench.pool.left == 0
    bench.look(1.0)
    assert bench.pool.left == 1
    assert "it waits in amqp.channel.close, line 7" in caplog.text


def test_a_worker_with_a_task_waits_for_it_and_not_for_the_broker(bench: Stopping) -> None:
    """The task has its time, whatever the main loop waits for."""
    bench.run(policy=PATIENT)
    bench.stop()
    bench.pool.hangs_in = "amqp.channel.close, line 7"
    for _ in range(4):
        bench.look(SILENCE / 2)
    assert bench.pool.left == 0


def test_one_line_says_what_became_of_the_leases(
    bench: Stopping, caplog: pytest.LogCaptureFixture
) -> None:
    """Counted from when the worker was asked; said once, however often it is looked."""
    bench.run("before")
    bench.leases.complete("before")
    for tag in ("done", "over", "deaf"):
        bench.run(tag)
    for tag in ("x", "y"):
        bench.receive(tag)
    with caplog.at_level(logging.INFO, "celery_lease.worker.shutdown"):
        bench.stop()
        bench.leases.endings[Ending.PARKED] += 1
        bench.ends(bench.held("done"), Outcome.DONE)
        bench.ends(bench.held("over"), Outcome.HANDED_OVER)
        bench.look(10.0 + HAND_OVER_TIME)
        bench.look()
        bench.look()
        bench.shutdown.report()
    lines = [each.getMessage() for each in caplog.records if "leases at" in each.getMessage()]
    counts = {
        Ending.PARKED: 1,
        Ending.COMPLETED: 1,
        Ending.HANDED_BACK: 2,
        Ending.HANDED_OVER: 1,
        Ending.ENDED: 1,
    }
    said = ", ".join(f"{counts.get(each, 0)} {each}" for each in SUMMED_UP)
    assert lines == [f"leases at shutdown: {said}"]


@pytest.mark.parametrize(
    "settle",
    [
        lambda bench: bench.leases.complete("a"),
        lambda bench: bench.leases.requeue(["a"]),
        lambda bench: bench.leases.end_soon("a", storing=False),
        lambda bench: bench.look(10.0 + HAND_OVER_TIME),
        lambda bench: bench.leases.requeue_unstarted(flushed=True),
        lambda bench: bench.leases.discard("a"),
        lambda bench: bench.leases.not_stored("a"),
        lambda bench: bench.leases.requeue(["a"], orderly=False, ending=Ending.PROCESS_DIED),
        lambda bench: bench.leases.requeue(["a"], orderly=False, ending=Ending.STALLED),
        lambda bench: bench.look(),  # it runs on
    ],
    ids=["done", "over", "cold", "ended", "flushed", "void", "not-stored", "died", "stalled", "on"],
)
def test_a_lost_lease_is_summed_up_as_lost_whatever_ended_its_run(
    bench: Stopping, caplog: pytest.LogCaptureFixture, settle: Callable[[Stopping], None]
) -> None:
    """The log has said that it was lost; the sum at the end does not say otherwise."""
    bench.run(pid=None)
    bench.stop()
    bench.leases.lost(["a"])
    with caplog.at_level(logging.INFO, "celery_lease.worker.shutdown"):
        settle(bench)
        bench.shutdown.report()
    (line,) = [each.getMessage() for each in caplog.records if "leases at" in each.getMessage()]
    assert ", 1 lost" in line
    assert sum(map(int, re.findall(r"[:,] (\d+)", line))) == 1
    facts = bench.leases.stats.counts
    assert sum(count for (fact, *_), count in facts.items() if fact is Fact.LOST) == 1


def test_a_run_that_learned_of_its_loss_from_the_broker_is_counted_as_lost(
    bench: Stopping,
) -> None:
    """Its worker believes by then that the lease is held, for it has not asked."""
    held = bench.run()
    bench.ends(held, Outcome.DISCARDED)
    bench.leases.discard("a")
    assert held.lease.lost is LossReason.SUPERSEDED
    assert bench.leases.endings == {Ending.LOST: 1}
    assert [key.detail for key in bench.leases.stats.counts if key.fact is Fact.LOST] == ["taken"]


def test_an_ended_run_whose_lease_was_lost_fails_the_worker_all_the_same(bench: Stopping) -> None:
    """The exit code tells of the task that had to be ended, whatever became of its lease."""
    bench.run()
    bench.stop()
    bench.leases.lost(["a"])
    bench.look(10.0 + HAND_OVER_TIME)
    assert bench.leases.endings == {Ending.LOST: 1}
    bench.shutdown.report()
    assert bench.pool.failures > 0


def test_a_worker_that_was_never_asked_reports_nothing(
    bench: Stopping, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection's end is none of the worker's."""
    with caplog.at_level(logging.INFO):
        bench.shutdown.report()
    assert not caplog.records


def test_asking_twice_begins_once(bench: Stopping) -> None:
    """A second signal neither starts the time anew nor forgets what was counted."""
    bench.run()
    bench.stop()
    bench.clock.advance(9.0)
    bench.shutdown.ask()
    bench.look(1.0 + HAND_OVER_TIME)
    assert bench.pool.ended == ["a"]


def test_a_silent_broker_does_not_keep_the_worker(bench: Stopping) -> None:
    """What it does not answer is asked again by the keeper; the table is empty at once."""
    for tag in ("a", "b"):
        bench.receive(tag)
    bench.driver.silent = True
    bench.stop()
    assert len(bench.leases) == 0
    assert bench.leases.outbox.again() == 1
    bench.driver.silent = False
    assert bench.leases.outbox.again() == 0
    assert bench.driver.expiries == {}


def test_a_lost_lease_is_not_handed_back_as_this_worker_s(bench: Stopping) -> None:
    """The broker gave the message to somebody else meanwhile: nothing changes there."""
    bench.run()
    bench.stop()
    del bench.driver.expiries["a"]
    bench.look(10.0 + HAND_OVER_TIME)
    assert bench.driver.requeue(["a"], orderly=True, front=True) == [Answer.LOST]
    assert bench.driver.expiries == {}
