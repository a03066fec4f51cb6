"""Who finds that the worker's process stood still, and when that is said of a loss."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.board import Board, standstill
from celery_lease.core.clock import host_seconds
from celery_lease.core.errors import LeaseLost
from unit.fake_broker import Bench
from unit.leased import LeasedRun

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def board() -> Iterator[Board]:
    """A board whose keeper looks at 100 s, and next at 100.5 s."""
    board = Board.create(2)
    standstill.looks(board, 100.0)
    standstill.rests(board, 100.5)
    yield board
    board.close()


@pytest.mark.parametrize(("now", "found"), [(100.4, 0.0), (101.4, 0.0), (107.5, 7.0)])
def test_whoever_is_first_finds_the_keepers_look_overdue(
    board: Board, now: float, found: float
) -> None:
    """A task may have its turn before the keeper; a look that is a little late is none."""
    assert standstill.since(board, 100.0, now) == found


def test_a_standstill_is_remembered_for_who_did_not_beat_since(board: Board) -> None:
    """It has nothing to do with a loss of a task that beat after it."""
    standstill.looks(board, 107.5)
    standstill.rests(board, 108.0)
    assert standstill.since(board, 100.3, 108.1) == 7.0
    assert standstill.since(board, 107.6, 108.1) == 0.0


def test_a_task_that_looks_between_two_writes_of_the_keeper_finds_it(board: Board) -> None:
    """It has its turn at the same moment as the keeper.

    Changed: "it looks" is written first; failed with: [0.0, 0.0, 7.0].
    """
    found = []

    class Numbers(dict[int, float]):
        def __setitem__(self, cell: int, value: float) -> None:
            super().__setitem__(cell, value)
            found.append(standstill.since(shown, 100.3, 107.5))

    cells = (standstill.DUE, standstill.LENGTH, standstill.ENDED)
    shown: Any = SimpleNamespace(numbers=Numbers({each: board.numbers[each] for each in cells}))
    standstill.looks(shown, 107.5)
    assert found == [7.0] * 3


def test_a_keeper_that_waits_for_its_broker_does_not_stand_still(board: Board) -> None:
    """From a look's beginning to its end nothing is due."""
    standstill.looks(board, 100.5)
    assert standstill.since(board, 100.3, 108.0) == 0.0
    standstill.rests(board, 108.5)
    standstill.looks(board, 108.6)
    assert standstill.since(board, 100.3, 108.7) == 0.0


@pytest.mark.parametrize("steps", [1, 48])
def test_the_log_says_of_a_loss_that_the_process_stood_still(
    caplog: pytest.LogCaptureFixture, steps: int
) -> None:
    """Twelve seconds in one step are a standstill; in steps of a quarter they are a silent task."""
    bench = Bench()
    bench.run()
    bench.passed()
    with caplog.at_level(logging.WARNING):
        for _ in range(steps):
            bench.passed(12.0 / steps)
    (line,) = [text for text in caplog.messages if "lost (expired)" in text]
    assert ("; this process stood still for 11.5 s" in line) is (steps == 1)
    bench.leases.close()


def test_the_error_says_that_the_process_stood_still() -> None:
    """As an attribute, and in its text."""
    run = LeasedRun()
    standstill.rests(run.board, host_seconds() - 7.0)
    run.board.allow(run.slot, host_seconds() - 1.0)
    with pytest.raises(LeaseLost) as caught:
        run.context.beat()
    assert caught.value.stood_still == pytest.approx(7.0, abs=5.0)
    assert "expired; the worker's process stood still for " in str(caught.value)
