"""A loop that resumes: where it goes on after each kind of end, and what is saved when."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from celery_lease import CheckpointError, LeaseLost, ShutdownRequested
from celery_lease.task.checkpoints import CheckpointTooLarge
from celery_lease.task.checkpoints.memory import MemoryStore
from unit.resumed_loops import Flaky, loop, rows_after, text_of, with_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_lease.testing import RecordedContext
    from celery_lease.testing.clock import LeaseClock
    from celery_lease.testing.plugin import MakeContext


# Where the next run goes on.


def test_a_hand_over_repeats_no_completed_item_and_skips_none(make_lease_context: Any) -> None:
    """The beat between two items ends the run, and the item before it is in the record."""
    first = make_lease_context(lease_interruptible=True)
    first.shut_down(after=8)
    done: list[int] = []
    with pytest.raises(ShutdownRequested):
        done.extend(loop(first))
    assert done == [*range(1, 9)]
    assert [*loop(make_lease_context(after=first))] == [*range(9, 21)]


def test_a_beat_in_the_body_that_ends_the_run_repeats_its_item(make_lease_context: Any) -> None:
    """It is not completed."""
    first, done = make_lease_context(), []
    with pytest.raises(LeaseLost):
        for row in loop(first):
            if row == 5:
                first.lose()
                first.beat()
            done.append(row)
    assert done == [1, 2, 3, 4]
    assert next(loop(make_lease_context(after=first))) == 5


@pytest.mark.parametrize("way", ["break", "error", "close"])
def test_a_loop_that_is_left_early_is_saved(make_lease_context: Any, way: str) -> None:
    """At once, with what is completed."""
    first = make_lease_context()
    if way == "close":
        items: Any = loop(first)
        while next(items) < 4:
            pass
        items.close()
    with suppress(ZeroDivisionError):
        for row in loop(first) if way != "close" else ():
            if row == 4 and way == "break":
                break
            1 / (4 - row)
    assert next(loop(make_lease_context(after=first))) == 4


def test_after_a_kill_what_every_seconds_hold_is_repeated(
    make_lease_context: Any, lease_clock: LeaseClock
) -> None:
    """And no more; saved is at most once in that time."""
    store = Flaky()
    first = with_store(make_lease_context(), store)
    items = loop(first, every=5)
    for row in items:
        lease_clock.advance(1)
        if row == 14:
            break
    # The generator lives: nobody left it in order.
    assert store.saves == 2
    second = with_store(make_lease_context(), store)
    assert next(loop(second)) == 11
    items.close()


def test_every_zero_saves_each_item(make_lease_context: Any) -> None:
    """Nothing is repeated but the item that was under way."""
    store = Flaky()
    assert len([*loop(with_store(make_lease_context(), store), every=0)]) == 20
    assert store.saves == 21


def test_a_completed_loop_goes_on_after_its_last_item(make_lease_context: Any) -> None:
    """Which is none, or what has come meanwhile."""
    first, items = make_lease_context(), [1, 2, 3]
    assert [*first.iterate(items)] == items
    second = make_lease_context(after=first)
    assert [*second.iterate(items)] == []
    third = make_lease_context(after=second)
    assert [*third.iterate([*items, 4])] == [4]


def test_a_source_that_is_a_generator_is_closed_when_the_loop_is_left(lease_context: Any) -> None:
    """Also if it is left by an error."""
    closed = []

    def rows(last: int | None) -> Iterator[int]:
        try:
            yield from rows_after(last)
        finally:
            closed.append(last)

    for _ in lease_context.iterate(rows, cursor=lambda row: row):
        break
    assert closed == [None]


class Play:
    """One run of a task with a loop in a loop, which ends in some way after some items."""

    def __init__(self, context: RecordedContext, clock: LeaseClock, end: str, after: int) -> None:
        self.context, self.clock, self.end, self.after = context, clock, end, after
        self.done: list[tuple[int, int]] = []
        self.loops: list[Any] = []

    def begin(self, source: Any, **options: Any) -> Any:
        """Begin a loop, and hold on to it, so that it is left when that is said."""
        self.loops.append(self.context.iterate(source, **options))
        return self.loops[-1]

    def play(self, every: float) -> None:
        """Do the work."""
        by_cursor = {"cursor": lambda row: row, "every": every}
        for outer in self.begin([1, 2, 3, 4], every=every, name="outer"):
            for inner in self.begin(lambda last: range((last or 0) + 1, 4), **by_cursor):
                if len(self.done) == self.after:
                    match self.end:
                        case "kill" | "break":
                            return
                        case "error":
                            raise ZeroDivisionError
                        case "lost":
                            self.context.lose()
                        case "stop":
                            self.context.shut_down()
                self.done.append((outer, inner))
                self.clock.advance(1)

    def die(self) -> None:
        """Leave the loops; nothing of a process that was killed reaches the store."""
        if self.end == "kill":
            self.context._checkpoints._store = MemoryStore()
        for each in reversed(self.loops):
            each.close()


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50
)
@given(
    ends=st.lists(
        st.tuples(st.sampled_from(["kill", "break", "error", "lost", "stop"]), st.integers(0, 9)),
        max_size=8,
    ),
    every=st.sampled_from([0.0, 3.0, 5.0]),
)
def test_loops_within_loops_skip_nothing_however_the_runs_end(
    make_lease_context: MakeContext,
    lease_clock: LeaseClock,
    ends: list[tuple[str, int]],
    every: float,
) -> None:
    """Each item comes in its order, and only what was not saved comes again."""
    expected = [(outer, inner) for outer in range(1, 5) for inner in range(1, 4)]
    context, reached, again = None, 0, 0
    for end, after in [*ends, ("", 0)]:
        context = make_lease_context(lease_interruptible=True, after=context)
        run = Play(context, lease_clock, end, after)
        with suppress(ZeroDivisionError, LeaseLost, ShutdownRequested):
            run.play(every)
        run.die()
        for item in run.done:
            assert expected.index(item) <= reached, f"{item} came too early"
            reached = max(reached, expected.index(item) + 1)
        again += len(run.done)
    assert reached == len(expected)
    kills = sum(end == "kill" for end, _ in ends)
    assert again <= len(expected) + kills * every


# What is saved.


def test_a_save_that_fails_is_told_once_and_made_up_for(
    make_lease_context: Any, lease_clock: LeaseClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop goes on meanwhile."""
    store = Flaky()
    for row in loop(with_store(make_lease_context(), store), every=1, name="rows"):
        lease_clock.advance(1)
        store.broken = row < 10
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "loop 'rows' of task test: place not saved, tried again in 1 s" in caplog.text
    assert json.loads(str(store._text))["loops"]["rows"]["at"] == 20


def test_a_loop_that_ends_unsaved_raises(make_lease_context: Any) -> None:
    """There is no next time."""
    store = Flaky()
    store.broken = True
    with pytest.raises(CheckpointError, match="flaky did not take the request"):
        list(loop(with_store(make_lease_context(), store)))


def test_a_loop_that_is_left_early_and_unsaved_is_told(
    make_lease_context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What ends the run goes its way."""
    context, store = make_lease_context(lease_interruptible=True), Flaky()
    store.broken = True
    context.shut_down(after=3)
    with pytest.raises(ShutdownRequested):
        list(loop(with_store(context, store)))
    assert "ended a loop whose place is not saved" in caplog.text


def test_checkpoints_and_loops_keep_each_other(make_lease_context: Any) -> None:
    """Each is saved with what the other has saved, in this run or the last one."""
    first = make_lease_context()
    for row in loop(first):
        if row == 3:
            first.checkpoint({"sum": 3})
            break
    second = make_lease_context(after=first)
    assert second.restored == {"sum": 3}
    assert second.saved == []
    second.checkpoint({"sum": 4})
    third = make_lease_context(after=second)
    assert next(loop(third)) == 3
    fourth = make_lease_context(after=third)
    assert fourth.restored == {"sum": 4}


def test_what_is_stored_is_a_checkpoint_of_todays_format(lease_context: Any) -> None:
    """Versions without loops read the state, and pass over the rest."""
    lease_context.checkpoint("state")
    assert "loops" not in json.loads(text_of(lease_context))
    for _ in lease_context.iterate([[1, 2], 3], name="all"):
        pass
    stored = json.loads(text_of(lease_context))
    assert (stored["v"], stored["value"]) == (1, "state")
    place = {"by": "position", "at": 2, "done": 2, "run": 1, "size": 2, "over": True}
    assert stored["loops"] == {"all": place}


def test_places_count_for_the_size_of_a_checkpoint(lease_context: Any) -> None:
    """The limit is that of the store."""
    rows = iter(["x" * 2**20])
    with pytest.raises(CheckpointTooLarge):
        list(lease_context.iterate(lambda _: rows, cursor=lambda row: row))


def test_a_former_holder_does_not_save_over_its_successor(
    make_lease_context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused by the fence, at which the loop ends; or runs on, if the task does."""

    class Taken(Flaky):
        def save(self, *_: Any) -> bool:
            return False

    with pytest.raises(LeaseLost):
        list(loop(with_store(make_lease_context(), Taken()), every=0))
    context = make_lease_context(lease_on_lost="continue")
    caplog.clear()
    assert len(list(loop(with_store(context, Taken()), every=0))) == 20
    assert [record.levelname for record in caplog.records] == ["WARNING"]
