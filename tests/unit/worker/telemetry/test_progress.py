"""Publishing progress: how often, whose, and never over a final state."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from celery import states

from celery_lease import LeasedTask, ToolContext
from celery_lease.board import CLOSED, PUBLISHING, Board, Outcome, publishing
from celery_lease.worker.telemetry.progress import Publisher
from unit.fake_broker import Bench
from unit.fakes import PATIENCE
from unit.leased_runs import Delivery, make_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_lease.board import Slot
    from celery_lease.worker.registry import LeaseEntry

INTERVAL = 2.0


class Publishing(Bench):
    """A worker that publishes to a list."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[tuple[str, dict[str, Any]]] = []
        self.meanwhile: Callable[[], None] = lambda: None  #: runs inside of each publication
        self.publisher = Publisher(self.leases, INTERVAL, self._store)
        self.leases.publishes, self.leases.on_end = True, self.publisher.close

    def _store(self, _name: str, task_id: str, progress: dict[str, Any], _request: Any) -> None:
        self.meanwhile()
        self.stored.append((task_id, progress))

    def say(self, held: LeaseEntry, done: float, note: str = "") -> None:
        """Report progress as the task does."""
        assert held.slot
        self.beat(held)
        self.board.report(held.slot, done, 8, note)

    def published(self, seconds: float = 0.0) -> list[float]:
        """Let time pass and the publisher look; return what was published by that."""
        self.clock.advance(seconds)
        before = len(self.stored)
        self.publisher.run_once()
        return [progress["done"] for _, progress in self.stored[before:]]


@pytest.fixture
def bench() -> Iterator[Publishing]:
    """Return a worker whose tasks have leases of 10 s."""
    bench = Publishing()
    yield bench
    bench.leases.close()


def slot_of(held: LeaseEntry) -> Slot:
    """Return the record of a task that runs."""
    assert held.slot is not None
    return held.slot


def test_what_is_new_is_published_at_most_once_an_interval(bench: Publishing) -> None:
    """The first at once, then what was said last; nothing while nothing is said."""
    held = bench.run()
    assert bench.published() == []
    bench.say(held, 1, "one")
    assert bench.published() == [1]
    bench.say(held, 2)
    bench.say(held, 3)
    assert bench.published(1.0) == []
    assert bench.published(1.0) == [3]
    assert bench.published(INTERVAL) == []
    assert bench.stored[0] == (
        "id-a",
        {"done": 1.0, "total": 8.0, "note": "one", "deliveries": 1, "at": 1893456000.0},
    )


@pytest.mark.parametrize("end", ["lost", "late", "told", "handed back", "closed", "ended"])
def test_nothing_is_published_of_a_task_that_is_not_its_own_or_over(
    bench: Publishing, end: str
) -> None:
    """The state is somebody else's, or final."""
    held = bench.run()
    bench.say(held, 1)
    match end:
        case "lost":
            bench.leases.lost(["a"])
        case "late":
            bench.clock.advance(8.5)  # not enough is left of the lease to store something under it
        case "told":
            bench.board.write_outcome(slot_of(held), Outcome.DONE)
        case "handed back":
            bench.leases.requeue(["a"])
        case "closed":
            publishing.close(bench.board, slot_of(held))
        case "ended":
            bench.leases.on_end("a")
    assert bench.published() == []
    assert bench.board.cells[slot_of(held).first + PUBLISHING] == 0


def test_a_run_waits_with_its_outcome_for_a_publication_under_way(bench: Publishing) -> None:
    """Else ``PROGRESS`` would be stored after it. Seen to fail without the wait in close()."""
    held = bench.run()
    bench.say(held, 1)
    closed: list[int] = []
    run = threading.Thread(
        target=lambda: (publishing.close(bench.board, slot_of(held)), closed.append(1))
    )

    def end_meanwhile() -> None:
        run.start()
        run.join(0.2)
        assert run.is_alive()
        assert closed == []

    bench.meanwhile = end_meanwhile
    assert bench.published() == [1]
    run.join(PATIENCE)
    assert closed == [1]
    bench.meanwhile = lambda: None
    bench.say(held, 2)
    assert bench.published(INTERVAL) == []


def test_the_main_process_waits_with_a_final_state_too(bench: Publishing) -> None:
    """A task whose process died is failed by the main loop, in another thread."""
    held = bench.run()
    bench.say(held, 1)
    failed: list[int] = []
    loop = threading.Thread(target=lambda: (bench.leases.on_end("a"), failed.append(1)))

    def end_meanwhile() -> None:
        loop.start()
        loop.join(0.2)
        assert failed == []

    bench.meanwhile = end_meanwhile
    assert bench.published() == [1]
    loop.join(PATIENCE)
    assert failed == [1]


def test_a_backend_that_is_away_is_told_once_and_asked_again(
    bench: Publishing, caplog: pytest.LogCaptureFixture
) -> None:
    """Progress is not worth a line a second; nothing is left marked as under way."""
    held = bench.run()
    bench.say(held, 1)

    def fail() -> None:
        raise OSError("away")

    bench.meanwhile = fail
    assert bench.published() == bench.published() == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert bench.board.cells[slot_of(held).first + PUBLISHING] == 0
    bench.meanwhile = lambda: None
    assert bench.published() == [1]


def test_a_cell_of_the_last_user_of_a_record_says_nothing() -> None:
    """Neither holds up the next one's end, nor forbids its publications."""
    board = Board.create(2)
    first = board.lend()
    board.cells[first.first + CLOSED] = first.mark | 1
    board.free(first)
    second = board.lend()
    board.cells[second.first + CLOSED] = first.mark | 1  # a late writer
    assert publishing.begin(board, second)
    publishing.end(board, second)
    assert not publishing.begin(board, first)
    board.close()


def test_a_run_closes_its_progress_before_its_outcome_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether it returns or raises; one whose result is ignored publishes nothing at all."""
    for options, closed in (({}, [False, True]), ({"ignore_result": True}, [True, True])):
        delivery = Delivery(monkeypatch, publishes=True)
        seen: list[bool] = []

        def look(delivery: Delivery = delivery, seen: list[bool] = seen) -> None:
            cell = delivery.board.cells[delivery.slot.first + CLOSED]
            seen.append(cell == delivery.slot.mark | 1)

        app = make_app()

        @app.task(base=LeasedTask, shared=False, lazy=False, **options)
        def task(*, context: ToolContext) -> None:
            context.beat()
            look()
            raise ValueError

        task.backend.store_result = lambda *_, **__: look()
        delivery.trace(task, request=options)
        assert seen[:2] == closed[: len(seen)]
        delivery.board.close()


def test_progress_is_no_state_of_celerys_own() -> None:
    """So it is not taken for an end, nor for an error."""
    assert "PROGRESS" not in states.ALL_STATES
