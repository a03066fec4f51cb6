"""What a task sees of its lease, with one and without."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from freezegun import freeze_time

from celery_lease import (
    LeaseLost,
    ShutdownRequested,
    TaskCancelled,
    ToolContext,
    board as beatboard,
    current_context,
)
from celery_lease.board import BEAT, QUIET, STARTED, Progress
from celery_lease.core.clock import BOOT_CLOCK, SystemClock, host_seconds
from celery_lease.core.loss import (
    FLAG_CANCELLED,
    FLAG_LOST,
    FLAG_MAX_DURATION,
    FLAG_SHUTDOWN,
    FLAG_SUPERSEDED,
)
from celery_lease.task.current import entered, leased_context, private_context
from unit.leased import LeasedRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def run() -> Iterator[LeasedRun]:
    """Return a run under a lease that is far from its expiry."""
    leased = LeasedRun()
    yield leased
    leased.board.close()


# ------------------------------------------------------------------------------------------ beats


def test_a_beat_writes_the_time_that_the_keeper_reads(run: LeasedRun) -> None:
    """Breaks when beats do not reach the worker's main process."""
    before = host_seconds()
    run.context.beat()
    assert before - 0.001 <= run.last_beat <= host_seconds()
    assert run.reports == 0


def test_a_beat_may_tell_progress(run: LeasedRun) -> None:
    """Breaks when parts that were not given wipe out those that were."""
    run.context.beat(1, 10, "first")
    run.context.beat(done=2)
    run.context.beat(note="later")
    assert run.board.read_progress(run.slot) == Progress(2.0, 10.0, "later", 3)


def test_the_start_of_a_run_is_its_first_beat(run: LeasedRun) -> None:
    """Breaks when the time in the pool's queue is counted as silence."""
    assert run.last_beat > 0
    assert run.board.read_time(run.slot, STARTED) == run.last_beat


def test_eight_threads_beat_for_one_lease(run: LeasedRun) -> None:
    """Breaks when a beat of one thread undoes, or fails because of, another's."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(2000):
                run.context.beat(number, 2000, "n")
        except BaseException as exc:
            failures.append(exc)
            raise

    run.silence()
    in_threads(8, work)
    assert failures == []
    assert run.beats_lately
    assert run.board.read_progress(run.slot).done == 1999


def in_threads(count: int, work: Callable[[], object]) -> None:
    """Run ``work`` in some threads and wait for all."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


# --------------------------------------------------------------------------------- I3: a lost lease


def test_every_beat_after_the_deadline_raises_also_behind_a_broad_except(run: LeasedRun) -> None:
    """Breaks when ``except Exception`` in a task's loop hides that its lease is gone (I3).

    With the comparison with the gate removed from ``ToolContext.beat``, nothing was raised.
    """
    run.context.beat()
    run.expire()
    for _ in range(3):
        try:
            run.context.beat()
        except Exception as exc:  # noqa: BLE001  (what users write)
            caught: Exception | None = exc
        else:
            caught = None
        assert isinstance(caught, LeaseLost)
        assert caught.task_id == "task-1"


def test_a_beat_after_the_deadline_is_not_written(run: LeasedRun) -> None:
    """Breaks when a late beat is left on the board for a keeper that looks later still (I3)."""
    run.expire()
    run.silence()
    with pytest.raises(LeaseLost, match="expired"):
        run.context.beat(5, 10, "late")
    assert not run.beats_lately
    assert run.reports == 0


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (FLAG_LOST | FLAG_SUPERSEDED, "another delivery owns the message"),
        (FLAG_LOST | FLAG_MAX_DURATION, "lease_max_duration reached"),
        (FLAG_LOST, "expired"),
    ],
)
def test_the_keeper_s_word_ends_the_lease_before_its_deadline(
    run: LeasedRun, flags: int, reason: str
) -> None:
    """Breaks when a task beats on although the broker gave its message to somebody else."""
    run.board.flag(run.slot, flags)
    assert run.context.is_lost
    assert run.context.remaining == 0
    with pytest.raises(LeaseLost, match=reason):
        run.context.beat()


@pytest.mark.parametrize("on_lost", ["abort", "continue"])
def test_a_record_that_is_another_lease_s_by_now_is_left_alone(on_lost: str) -> None:
    """Breaks when a run that outlived its lease keeps, quiets or describes somebody else's.

    With the upper limit removed from ``ToolContext.beat``, the old run's beat was accepted.
    """
    run = LeasedRun(on_lost=on_lost)
    context = run.context
    heir = run.take_over()
    first, last = heir.first, heir.first + beatboard.RECORD_CELLS
    before = run.board.cells[first:last].tolist()
    for use in (lambda: context.beat(1, 2, "mine"), context.check, lambda: use_quiet(context)):
        with suppress(LeaseLost):
            use()
    assert run.board.cells[first:last].tolist() == before
    assert context.is_lost
    run.board.close()


def use_quiet(context: ToolContext) -> None:
    """Enter a quiet period and leave it."""
    with context.quiet(5):
        pass


def test_a_quiet_period_that_outlives_its_lease_leaves_the_heir_s_alone(run: LeasedRun) -> None:
    """Breaks when leaving quiet() writes zero over the quiet period of the record's next lease."""
    with pytest.raises(LeaseLost), run.context.quiet(60):
        heir = run.take_over()
        run.board.write_time(heir, QUIET, 12345.0)
    assert run.board.read_time(heir, QUIET) == 12345.0


def test_with_on_lost_continue_a_loss_is_logged_once_and_the_task_runs_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Breaks when a task that is allowed to go on is stopped, or fills the log at every beat."""
    run = LeasedRun(on_lost="continue")
    run.expire()
    run.silence()
    with caplog.at_level(logging.WARNING, "celery_lease"):
        for _ in range(3):
            run.context.beat(1)
    assert [record.getMessage() for record in caplog.records] == [
        "lease of task task-1 lost (expired); the task runs on"
    ]
    assert run.context.is_lost
    assert not run.beats_lately
    run.board.close()


def test_an_observed_task_is_told_nothing() -> None:
    """Breaks when lease_mode "observe" stops a task that it only watches."""
    run = LeasedRun(mode="observe")
    run.board.flag(run.slot, FLAG_LOST)
    run.silence()
    run.context.beat()
    assert run.beats_lately
    assert not run.context.is_lost
    run.board.close()


def test_a_ticket_of_a_worker_that_is_gone_is_a_lost_lease() -> None:
    """Breaks when a task starts although nobody will ever extend its lease."""
    run = LeasedRun()
    run.board.close()
    with pytest.raises(LeaseLost, match="main process is gone"):
        leased_context(run.ticket, "task-1")


@pytest.mark.parametrize(
    ("longest", "until", "reason"),
    [
        (5.0, math.inf, "lease_max_duration reached"),
        (6.0, math.inf, "expired"),
        (math.inf, -5.0, "the broker holds no message longer"),
        (math.inf, math.inf, "expired"),
    ],
)
def test_the_reason_is_right_before_the_keeper_has_told_of_it(
    longest: float, until: float, reason: str
) -> None:
    """Breaks when a task that sees its deadline first takes each end for an expiry."""
    now = host_seconds()
    run = LeasedRun(longest=longest, longest_until=now + until)
    run.board.write_time(run.slot, STARTED, now - 10)
    run.board.allow(run.slot, now - 5)
    with pytest.raises(LeaseLost) as caught:
        run.context.beat()
    assert caught.value.reason == reason
    run.board.close()


def test_the_first_cause_is_the_reason(run: LeasedRun) -> None:
    """Breaks when a task that ran too long hears of what came of that: others have its message."""
    for flag in (FLAG_MAX_DURATION, FLAG_SUPERSEDED):
        run.board.flag(run.slot, FLAG_LOST | flag)
    with pytest.raises(LeaseLost, match="lease_max_duration reached"):
        run.context.beat()


@pytest.mark.parametrize("part", ["context", "heartbeat"])
def test_a_spawned_child_cannot_have_the_context_and_is_told_what_to_do(
    run: LeasedRun, part: str
) -> None:
    """Breaks when "cannot pickle 'mmap.mmap'" is all that an author reads."""
    what = run.context if part == "context" else run.context.heartbeat
    for copy in (pickle.dumps, deepcopy):
        with pytest.raises(TypeError, match=r"cannot be sent to another process.*context\.beat"):
            copy(what)
    child = multiprocessing.get_context("spawn").Process(target=print, args=(what,))
    with pytest.raises(TypeError, match="fork the child"):
        child.start()


# --------------------------------------------------------------------------------------- the worker


def test_a_task_that_is_told_to_hand_over_is_told_at_every_beat(run: LeasedRun) -> None:
    """Breaks when a broad except swallows a shutdown; whom to tell is the worker's decision."""
    run.board.announce_shutdown()
    run.context.beat(1)
    run.board.flag(run.slot, FLAG_SHUTDOWN)
    for _ in range(2):
        with pytest.raises(ShutdownRequested):
            run.context.beat()


def test_a_cancelled_task_is_told_at_every_beat(run: LeasedRun) -> None:
    """Breaks when a broad except swallows a cancellation."""
    run.board.flag(run.slot, FLAG_CANCELLED)
    for _ in range(2):
        with pytest.raises(TaskCancelled, match="task-1"):
            run.context.beat()


def test_a_cancelled_task_has_one_lease_to_clean_up(run: LeasedRun) -> None:
    """To be told is a beat, once: a task that goes on regardless does not go on for ever."""
    assert not run.context.cancelled
    run.board.flag(run.slot, FLAG_CANCELLED)
    for beats in (True, False):
        run.silence()
        with pytest.raises(TaskCancelled):
            run.context.beat()
        assert run.beats_lately is beats
    assert run.context.cancelled


def test_a_lost_lease_is_told_before_anything_else() -> None:
    """Breaks when a task whose message is elsewhere is handed over once more."""
    run = LeasedRun(interruptible=True)
    run.board.flag(run.slot, FLAG_SHUTDOWN | FLAG_LOST)
    with pytest.raises(LeaseLost):
        run.context.beat()
    run.board.close()


def test_a_look_at_the_lease_is_no_proof_of_progress(run: LeasedRun) -> None:
    """Breaks when waiting for a silent command keeps a lease alive, in a shutdown too (I2)."""
    run.silence()
    run.context.check()
    run.board.flag(run.slot, 0)  # the gate is closed, for no reason that concerns the task
    run.context.check()
    assert not run.beats_lately


def test_a_task_sees_that_its_worker_was_asked_to_stop(run: LeasedRun) -> None:
    """Breaks when ``shutting_down`` is false in a worker that stops."""
    assert not run.context.shutting_down
    run.board.announce_shutdown()
    assert run.context.shutting_down


# --------------------------------------------------------------------------------- what it may know


def test_a_holder_knows_its_token_its_delivery_and_its_worker(run: LeasedRun) -> None:
    """Breaks when a fenced write to another system has no number to show."""
    context = run.context
    assert (context.fencing_token, context.deliveries, context.worker_id) == (
        41,
        3,
        "w1@host:1:abc",
    )
    assert context.leased


def test_remaining_and_deadline_tell_when_the_lease_expires(run: LeasedRun) -> None:
    """Breaks when a holder trusts its lease for longer than its worker does."""
    run.board.allow(run.slot, host_seconds() + 50)
    assert 40 < run.context.remaining <= 50
    deadline = run.context.deadline
    assert deadline is not None
    assert timedelta(seconds=40) < deadline - datetime.now(UTC) <= timedelta(seconds=50)
    run.expire()
    assert run.context.remaining == 0


def test_elapsed_is_the_time_since_the_last_beat(run: LeasedRun) -> None:
    """Breaks when silence is counted from anything else."""
    run.silence()
    assert 9 < run.context.elapsed < 20
    run.context.beat()
    assert 0 <= run.context.elapsed < 9


def test_without_a_lease_everything_works_and_nothing_expires() -> None:
    """Breaks when a task called as a plain function needs a worker."""
    context = private_context("direct")
    context.beat(1, 2, "three")
    context.check()
    with context.quiet(1), context.step("step"):
        assert list(context.track("ab")) == ["a", "b"]
    assert context.tool(max, 1, 2) == 2
    assert context.remaining == math.inf
    assert context.deadline is None
    assert context.fencing_token is None
    assert (context.deliveries, context.worker_id, context.leased) == (1, "", False)
    assert not context.is_lost
    assert not context.shutting_down
    assert 0 <= context.elapsed < 20


# -------------------------------------------------------------------------------- track, step, tool


def test_track_beats_for_every_item_and_counts_what_is_done(run: LeasedRun) -> None:
    """Breaks when an item counts as done while it is being worked on."""
    board, slot = run.board, run.slot
    seen = [(item, board.read_progress(slot).done) for item in run.context.track("abc")]
    assert seen == [("a", 0.0), ("b", 1.0), ("c", 2.0)]
    assert run.board.read_progress(run.slot) == Progress(3.0, 3.0, "", 4)


def test_track_takes_a_total_for_what_has_no_length(run: LeasedRun) -> None:
    """Breaks when a generator needs to be counted first."""
    assert list(run.context.track((n for n in range(3)), total=3.5)) == [0, 1, 2]
    assert run.board.read_progress(run.slot).total == 3.5
    assert list(run.context.track(iter([]))) == []


def test_an_item_that_was_not_finished_does_not_count(run: LeasedRun) -> None:
    """Breaks when leaving the loop early, or failing in it, beats once more."""
    for _ in run.context.track("abc"):
        run.silence()
        break
    assert not run.beats_lately
    with pytest.raises(ZeroDivisionError):
        for item in run.context.track([1, 0]):
            run.silence()
            1 / item
    assert not run.beats_lately


@pytest.mark.parametrize("error", [TypeError, ValueError, NotImplementedError, OverflowError])
def test_track_takes_what_has_a_length_that_raises(run: LeasedRun, error: type[Exception]) -> None:
    """Such as tqdm around a generator, or a data loader: there is no total then.

    Failed before with the error of ``len()``.
    """

    class Loader:
        def __len__(self) -> int:
            raise error("no length")

        def __iter__(self) -> Iterator[int]:
            return iter([1, 2])

    assert list(run.context.track(Loader())) == [1, 2]
    assert run.board.read_progress(run.slot) == Progress(2.0, None, "", 3)


def test_what_has_nothing_to_do_with_a_length_is_not_hidden(run: LeasedRun) -> None:
    """A lost lease or a time limit that comes up in there ends the task all the same."""

    class Remote:
        def __len__(self) -> int:
            raise LeaseLost("x")

        def __iter__(self) -> Iterator[int]:
            return iter([])

    with pytest.raises(LeaseLost):
        list(run.context.track(Remote()))


@pytest.mark.parametrize(
    ("items", "total", "expected"), [("cd", None, 4.0), ("cd", 9, 9.0), (iter("cd"), None, None)]
)
def test_track_goes_on_with_a_count(
    run: LeasedRun, items: Any, total: Any, expected: float | None
) -> None:
    """``start`` is what an earlier run did: counted as done, and as part of what there is."""
    board, slot = run.board, run.slot
    seen = [board.read_progress(slot).done for _ in run.context.track(items, total, start=2)]
    assert seen == [2, 3]
    last = board.read_progress(slot)
    assert (last.done, last.total) == (4.0, expected)


@pytest.mark.parametrize("start", [-1, 1.5, True, "2", None])
def test_track_refuses_a_start_that_is_no_count(run: LeasedRun, start: Any) -> None:
    """Before the first item."""
    with pytest.raises(ValueError, match=f"not {start!r}"):
        next(run.context.track("ab", start=start))


def test_track_stops_at_the_first_item_after_the_loss(run: LeasedRun) -> None:
    """Breaks when a loop over many items goes on without a lease."""
    seen = []
    with pytest.raises(LeaseLost):
        for item in run.context.track(range(5)):
            seen.append(item)
            if item == 1:
                run.expire()
    assert seen == [0, 1]


def test_a_step_beats_on_both_sides_and_is_named(run: LeasedRun) -> None:
    """Breaks when a phase is not seen in the progress, or its end is no progress."""
    run.silence()
    with run.context.step("encode"):
        assert run.beats_lately
        assert run.board.read_progress(run.slot).note == "encode"
        run.silence()
    assert run.beats_lately


def test_a_step_that_fails_fails_with_its_own_error(run: LeasedRun) -> None:
    """Breaks when the beat at a step's end hides what went wrong in it."""
    with pytest.raises(ZeroDivisionError), run.context.step("divide"):
        run.expire()
        1 / 0  # noqa: B018


def test_a_tool_is_a_step_with_the_function_s_name(run: LeasedRun) -> None:
    """Breaks when arguments, the result or the name get lost."""

    def add(function: int, *, self: int) -> int:
        """Take the names that the method itself uses."""
        return function + self

    assert run.context.tool(add, function=1, self=2) == 3
    assert run.board.read_progress(run.slot).note == "add"


# -------------------------------------------------------------------------------------------- quiet


def quiet_until(run: LeasedRun) -> float:
    """Return the seconds from now until the declared quiet period ends; 0.0 for none."""
    until = run.board.read_time(run.slot, QUIET)
    return until and until - host_seconds()


def test_quiet_declares_its_end_and_takes_it_back(run: LeasedRun) -> None:
    """Breaks when a silence is not covered, or goes on being covered after its end."""
    run.silence()
    with run.context.quiet(500):
        assert run.beats_lately
        assert 480 < quiet_until(run) <= 500
        run.silence()
    assert quiet_until(run) == 0.0
    assert run.beats_lately


def test_a_quiet_period_inside_another_takes_nothing_from_it(run: LeasedRun) -> None:
    """Breaks when the end of the inner one leaves the outer one uncovered.

    When leaving wrote a plain zero, the outer period was over as well.
    """
    with run.context.quiet(500):
        with run.context.quiet(5):
            assert quiet_until(run) > 450
        assert quiet_until(run) > 450
        with run.context.quiet(900):
            assert quiet_until(run) > 850
        assert 450 < quiet_until(run) <= 500
    assert quiet_until(run) == 0.0


def test_a_quiet_call_that_fails_is_not_covered_any_longer_and_does_not_beat(
    run: LeasedRun,
) -> None:
    """Breaks when a failed call still blocks its message for the rest of its time."""
    with pytest.raises(ZeroDivisionError), run.context.quiet(500):
        run.silence()
        1 / 0  # noqa: B018
    assert quiet_until(run) == 0.0
    assert not run.beats_lately


def test_a_lease_that_was_lost_in_a_quiet_period_is_told_at_its_end(run: LeasedRun) -> None:
    """Breaks when a call that took too long ends as if nothing had happened."""
    with pytest.raises(LeaseLost), run.context.quiet(0.01):
        run.expire()
    assert quiet_until(run) == 0.0


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, True])
def test_quiet_takes_a_duration_and_nothing_else(run: LeasedRun, seconds: float) -> None:
    """Breaks when a slip covers a task for ever."""
    with pytest.raises(ValueError, match="positive number of seconds"), run.context.quiet(seconds):
        pass
    assert quiet_until(run) == 0.0


# ---------------------------------------------------------------------------------------- heartbeat


def test_the_heartbeat_beats_for_the_lease(run: LeasedRun) -> None:
    """Breaks when code that takes a heartbeat does not keep the lease."""
    heartbeat = run.context.heartbeat
    run.silence()
    assert heartbeat.elapsed() > 9
    heartbeat.beat()
    assert run.beats_lately
    assert heartbeat.elapsed() < 9
    assert heartbeat.beats == 1


def test_callbacks_of_the_heartbeat_hear_the_context_s_beats(run: LeasedRun) -> None:
    """Breaks when an attached extender sees only the beats made on the heartbeat itself."""
    heard: list[str] = []
    run.context.heartbeat.add_callback(lambda: heard.append("beat"))
    run.context.beat()
    list(run.context.track("ab"))
    run.context.heartbeat.beat()
    assert len(heard) == 5


def test_the_heartbeat_of_a_lost_lease_raises_and_tells_nobody(run: LeasedRun) -> None:
    """Breaks when a library that beats for us hides the loss, or extends what is lost."""
    heard: list[str] = []
    run.context.heartbeat.add_callback(lambda: heard.append("beat"))
    run.expire()
    with pytest.raises(LeaseLost):
        run.context.heartbeat.beat()
    assert heard == []


def test_threads_that_ask_at_once_get_the_same_heartbeat() -> None:
    """Breaks when a callback is added to a heartbeat that nobody beats."""
    for _ in range(50):
        context = private_context()
        found: list[Any] = []
        in_threads(4, lambda context=context, found=found: found.append(context.heartbeat))
        assert len(set(map(id, found))) == 1


# --------------------------------------------------------------------------------- current_context


def test_current_context_is_that_of_the_task_that_runs(run: LeasedRun) -> None:
    """Breaks when a function deep inside a task cannot beat, or beats for the wrong one."""
    inner = private_context()
    with entered(run.context):
        assert current_context() is run.context
        with entered(inner):
            assert current_context() is inner
        assert current_context() is run.context


def test_asking_outside_of_a_task_says_what_to_do() -> None:
    """Breaks when the error leaves its reader without the next step."""
    with pytest.raises(LookupError, match="pass the context on to other threads"):
        current_context()


def test_another_thread_has_no_context_of_its_own(run: LeasedRun) -> None:
    """Breaks when a pool's thread would beat for whichever task ran there before."""
    found: list[object] = []

    def ask() -> None:
        try:
            found.append(current_context())
        except LookupError as exc:
            found.append(exc)

    with entered(run.context):
        in_threads(1, ask)
    assert isinstance(found[0], LookupError)


def test_asyncio_code_inside_a_task_has_its_context(run: LeasedRun) -> None:
    """Breaks when a task that drives a loop cannot beat in its coroutines and their threads."""

    async def coroutines() -> list[ToolContext]:
        tasks = [asyncio.create_task(ask()) for _ in range(2)]
        return [*(await asyncio.gather(*tasks)), await asyncio.to_thread(current_context)]

    async def ask() -> ToolContext:
        await asyncio.sleep(0)
        return current_context()

    with entered(run.context):
        assert asyncio.run(coroutines()) == [run.context] * 3
    with pytest.raises(LookupError):
        asyncio.run(ask())


# ------------------------------------------------------------------------------------ I7 and clocks


def test_a_beat_takes_no_lock_that_anybody_could_hold(run: LeasedRun) -> None:
    """Breaks when a beat waits for a lock that a killed or stopped process may hold for ever (I7).

    Every lock that can be reached from the context is held here. With the board's lock taken and
    released in ``beat``, the thread did not come back.
    """
    context = run.context
    context.heartbeat.add_callback(lambda: None)
    locks = locks_of(context)
    assert len(locks) >= 2  # the board's and the heartbeat's
    run.silence()
    thread = threading.Thread(target=beat_in_every_way, args=(context,), daemon=True)
    for lock in locks:
        lock.acquire()
    try:
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
    finally:
        for lock in locks:
            lock.release()
    assert run.board.read_progress(run.slot).done == 2


def beat_in_every_way(context: ToolContext) -> None:
    """Use all that a task calls in its innermost loops."""
    context.beat()
    context.beat(1, 2, "note")
    list(context.track("ab"))
    with context.step("step"), context.quiet(5):
        context.heartbeat.beat()


def locks_of(root: object) -> list[Any]:
    """Return every lock that hangs on an object, on its parts, on their parts, and so on."""
    found, seen, todo = [], set(), [root]
    passive = (type, type(sys), type(locks_of))  # classes, modules and functions lead everywhere
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, passive):
            continue
        seen.add(id(thing))
        if isinstance(thing, (type(threading.Lock()), type(threading.RLock()))):
            found.append(thing)
        todo += gc.get_referents(thing)
        todo += [getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ())]
    return found


STRACED = """
import os
from celery_lease.task.current import private_context
context = private_context()
heartbeat = context.heartbeat
context.beat(1, 2, "warm")
os.write(1, b"BEGIN")
for number in range(1000):
    context.beat()
    context.beat(number, 1000, "note")
    heartbeat.beat()
os.write(1, b"END")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="strace is Linux's")
def test_a_thousand_beats_make_no_system_call_at_all() -> None:
    """Breaks when a beat enters the kernel: for I/O, for a contended lock, for the time (I7).

    With a call of ``os.getppid`` in ``beat``, the trace held 3,000 of them. Memory that the
    interpreter takes for itself is no I/O.
    """
    strace = shutil.which("strace")
    usable = (
        strace and not subprocess.run([strace, "true"], capture_output=True, check=False).returncode
    )
    if strace is None or not usable:
        pytest.skip("no strace, or not allowed here")
    done = subprocess.run(
        [strace, "-f", sys.executable, "-c", STRACED],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    trace = done.stderr.partition('"BEGIN"')[2].partition('"END"')[0]
    lines = [line for line in trace.splitlines()[1:-1] if "(" in line]
    kernel = [line for line in lines if not line.startswith(("mmap(NULL", "munmap(", "brk("))]
    assert len(kernel) <= 5, kernel[:20]  # a signal, a thread's exit: not one a beat
    assert done.stdout == "BEGINEND"


def test_a_changed_wall_clock_changes_no_lease(run: LeasedRun) -> None:
    """Breaks when a beat, a deadline or a silence is read from a clock that people can set."""
    with freeze_time("1999-12-31"):
        run.context.beat()
    assert run.beats_lately
    with freeze_time("2099-01-01") as frozen:
        run.context.beat()
        frozen.tick(timedelta(days=365))
        run.context.beat()
        assert 900 < run.context.remaining <= 1000
        assert run.context.elapsed < 9
        assert SystemClock().wall().year == 2099 + 1


def test_leases_are_counted_by_the_clock_that_counts_suspend() -> None:
    """Breaks when a laptop that slept wakes up with leases that the broker gave away long ago."""
    import time

    wanted = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    assert wanted == BOOT_CLOCK
    before = time.clock_gettime(wanted)
    assert before <= host_seconds() <= SystemClock().now() <= time.clock_gettime(wanted)


def test_a_child_that_the_task_forks_beats_for_the_same_lease(run: LeasedRun) -> None:
    """Breaks when multiprocessing inside a task loses its lease although it works."""
    run.silence()
    pid = os.fork()
    if pid == 0:
        run.context.beat(1, 2, "child")
        os._exit(0)
    os.waitpid(pid, 0)
    assert run.beats_lately
    assert run.board.read_progress(run.slot).note == "child"
    assert run.board.numbers[run.slot.first + BEAT] > 0
