"""Whose place is whose: of several loops, of loops that changed, and of several runs."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from celery.signals import before_task_publish

from celery_lease.task.checkpoints.errors import CheckpointMismatch, CheckpointUnreadable
from celery_lease.task.runs import Run
from unit.leased_runs import Delivery, leased, make_app
from unit.resumed_loops import ROWS, loop, rows_after, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from celery_lease import ToolContext
    from celery_lease.testing.clock import LeaseClock


# Several loops.


def test_loops_are_told_apart_by_name(make_lease_context: Any) -> None:
    """One after the other."""
    first = make_lease_context()
    assert len(list(loop(first, name="one"))) == 20
    for row in loop(first, name="two"):
        if row == 7:
            break
    second = make_lease_context(after=first)
    assert list(loop(second, name="one")) == []
    assert next(loop(second, name="two")) == 7


def test_two_loops_of_one_name_are_refused(lease_context: Any) -> None:
    """The second one would go on where the first one was, and skip what is its own."""
    list(loop(lease_context))
    with pytest.raises(ValueError, match="has begun a loop 'loop' already; give each loop a name"):
        next(loop(lease_context))


def test_loops_side_by_side_are_refused(lease_context: Any) -> None:
    """Their places are not one."""
    with pytest.raises(RuntimeError, match="cannot run side by side, as by zip"):
        list(zip(loop(lease_context, name="a"), loop(lease_context, name="b"), strict=True))


def walked(context: ToolContext, ends: dict[str, int]) -> dict[str, int]:
    """Go through a loop in each of some threads, up to a row; return the row that each began at."""
    begun, first = Barrier(len(ends)), {}

    def walk(name: str) -> None:
        for row in loop(context, name=name):
            if first.setdefault(name, row) == row:
                begun.wait(20)
            if row == ends[name]:
                break

    with ThreadPoolExecutor(len(ends)) as pool:
        list(pool.map(walk, ends))
    return first


def test_threads_have_loops_of_their_own(make_lease_context: Any) -> None:
    """One is not within another's, and each goes on where it was."""
    first = make_lease_context()
    assert walked(first, {"a": 5, "b": 9}) == {"a": 1, "b": 1}
    assert walked(make_lease_context(after=first), {"a": 6, "b": 10}) == {"a": 5, "b": 9}


def test_progress_counts_over_all_runs(make_lease_context: Any) -> None:
    """Done, total and the number of the run; of loops within each other the outer one's."""
    first = make_lease_context()
    for row in loop(first, total=20):
        list(first.iterate([1, 2, 3], name="inner"))
        if row == 13:
            break
    progress = first.progress
    assert (progress.done, progress.total, progress.note) == (12, 20, "")
    second = make_lease_context(after=first)
    items = loop(second, total=20)
    next(items)
    progress = second.progress
    assert (progress.done, progress.total, progress.note) == (12, 20, "2nd run")
    third = make_lease_context()
    list(third.iterate("abc"))
    assert (third.progress.done, third.progress.total) == (3, 3)
    list(loop(third, name="of unknown length"))
    assert (third.progress.done, third.progress.total) == (20, None)


def test_a_rate_counts_over_all_runs(lease_clock: LeaseClock, make_lease_context: Any) -> None:
    """Items by seconds, of the work as far as it is saved; not of the time between two runs."""
    first = make_lease_context()
    for row in loop(first, total=20):
        lease_clock.advance(2.0)
        if row == 11:
            break
    assert first.progress.since is None
    lease_clock.advance(1000.0)
    second = make_lease_context(after=first)
    for row in loop(second, total=20):
        lease_clock.advance(2.0)
        if row == 16:
            break
        progress = second.progress
        assert progress.rate(lease_clock.now()) == (row - 1) / (2.0 * (row + 1))
    third = make_lease_context(after=second)
    items = loop(third, total=20)
    next(items)
    assert third.progress.rate(lease_clock.now()) == 15 / 34.0


def test_a_loop_that_begins_anew_has_no_former_rate(
    lease_clock: LeaseClock, make_lease_context: Any
) -> None:
    first = make_lease_context()
    for _ in first.iterate([1, 2, 3]):
        lease_clock.advance(2.0)
    second = make_lease_context(after=first)
    for row in loop(second, name="loop", on_mismatch="restart"):
        lease_clock.advance(1.0)
        assert second.progress.rate(lease_clock.now()) == (row - 1) / row


# What does not fit.


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        ([1, 2, 3], {}, "its place was saved as a cursor, and its source goes by position now"),
        (
            lambda _: [(1, 2)],
            {"cursor": lambda row: row},
            r"its last cursor was 3, and the next item's is \(1, 2\)",
        ),
        (
            rows_after,
            {"cursor": lambda row: row, "name": "other"},
            "it has no place, and loop 'loop', which has not begun here, has one",
        ),
    ],
)
def test_a_place_of_another_loop_is_refused_or_passed_over(
    make_lease_context: Any,
    caplog: pytest.LogCaptureFixture,
    source: Any,
    options: Any,
    reason: str,
) -> None:
    """As the author says."""
    first = make_lease_context()
    for row in loop(first):
        if row == 4:
            break
    second = make_lease_context(after=first)
    with pytest.raises(CheckpointMismatch, match=reason):
        next(second.iterate(source, **options))
    third = make_lease_context(after=second)
    items = [*third.iterate(source, **options, on_mismatch="restart")]
    assert items == [*(source(None) if callable(source) else source)]
    assert "begins anew: " in caplog.text


def test_a_sequence_that_has_become_shorter_is_refused(make_lease_context: Any) -> None:
    """A position in it is another item's, as where the body removes what is done."""
    first = make_lease_context()
    for number in first.iterate([1, 2, 3, 4]):
        if number == 3:
            break
    with pytest.raises(CheckpointMismatch, match="its source had 4 items and has 2"):
        next(make_lease_context(after=first).iterate([3, 4]))


def test_a_place_that_cannot_be_read_is_told(make_lease_context: Any) -> None:
    """Nothing is guessed."""
    first = make_lease_context()
    list(loop(first))
    first._store._text = text_of(first).replace('"at":20', '"at":{"$":"colour","v":1}')
    with pytest.raises(CheckpointUnreadable, match="of a later version"):
        next(loop(make_lease_context(after=first)))


# In a task.


def test_no_place_for_checkpoints_is_told_at_the_first_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With what to set."""
    app, done = make_app(), []

    @leased(app, name="walk")
    def walk(*, context: ToolContext) -> None:
        done.extend(context.iterate([1, 2]))

    error = Delivery(monkeypatch).trace(walk)
    assert "set result_backend to one, such as redis://" in str(error.retval)
    assert done == []


@pytest.mark.parametrize("way", ["retry", "hand-over"])
def test_a_place_is_saved_before_the_task_may_run_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    """Also that of a loop which a variable, and so the error's traceback, holds."""
    app, found = make_app(), []
    app.conf.result_backend = f"file://{tmp_path}"
    end = Run.end

    def look(*_: Any, **__: Any) -> None:
        found.extend(json.loads(path.read_text()) for path in tmp_path.glob("*.checkpoint"))

    def check(run: Run, outcome: Any) -> None:
        look()
        end(run, outcome)

    @leased(app, name="trying", bind=True)
    def trying(self: Any, *, context: ToolContext) -> None:
        items = loop(context)
        for row in items:
            if row == 5:
                if way == "retry":
                    raise self.retry(countdown=0)
                delivery.shut_down()
                context.beat()

    delivery = Delivery(monkeypatch, interruptible=True)
    if way == "retry":
        before_task_publish.connect(look, weak=False)
    else:
        monkeypatch.setattr(Run, "end", check)
    try:
        delivery.trace(trying)
    finally:
        before_task_publish.disconnect(look)
    assert found[0]["loops"]["loop"]["at"] == 4


def test_a_success_removes_the_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As any checkpoint."""
    app = make_app()
    app.conf.result_backend = f"file://{tmp_path}"

    @leased(app, name="walking")
    def walking(*, context: ToolContext) -> list[int]:
        return [*loop(context, every=0)]

    assert Delivery(monkeypatch).trace(walking).retval == [*ROWS]
    assert not [*tmp_path.glob("*.checkpoint")]


def test_the_items_of_a_map_do_not_go_on_in_each_others_loops(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor where the last run's were: a map begins anew."""
    app = make_app()
    app.conf.result_backend = f"file://{tmp_path}"

    @leased(app, name="walks")
    def walks(stop: int, *, context: ToolContext) -> list[int]:
        rows = []
        for row in loop(context):
            if row == stop:
                raise ValueError(row)
            rows.append(row)
        return rows

    first = Delivery(monkeypatch)
    first.trace(app.tasks["celery_lease.map"], walks.s(), [99, 3])
    again = Delivery(monkeypatch, token=8)
    again.task_id = first.task_id
    done = again.trace(app.tasks["celery_lease.map"], walks.s(), [99, 98]).retval
    assert done == [[*ROWS], [*ROWS]]
