"""Whom a group tells what and when: signals, ends and the passing of time, without processes."""

from __future__ import annotations

from signal import SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGUSR1, Signals

import pytest

from celery_lease.group import LAST_WORDS, Member, longest_stop
from celery_lease.group.plan import Plan

TIMEOUT = 30.0


class Story:
    """A plan on a clock that the test moves; what it orders, as ``name SIGNAL`` lines."""

    def __init__(self, **priorities: int) -> None:
        members = [Member(name=n, command=(), priority=p) for n, p in priorities.items()]
        self.plan = Plan(members, TIMEOUT)
        self.now = 100.0

    def signal(self, number: Signals) -> list[str]:
        return self._read(self.plan.on_signal(number, self.now))

    def end(self, name: str, code: int = 0) -> list[str]:
        return self._read(self.plan.on_end(name, code, self.now))

    def after(self, seconds: float) -> list[str]:
        self.now += seconds
        return self._read(self.plan.on_time(self.now))

    @property
    def left(self) -> float | None:
        return self.plan.time_left(self.now)

    @staticmethod
    def _read(orders: list) -> list[str]:
        return [f"{order.name} {order.number.name}" for order in orders]


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
def test_levels_are_told_one_after_the_other_the_lowest_first(number: Signals) -> None:
    """A level is told when the last one of the level below has ended."""
    story = Story(late=20, one=10, two=10)
    assert story.signal(number) == [f"one {number.name}", f"two {number.name}"]
    assert story.end("two") == []
    assert story.end("one") == [f"late {number.name}"]
    assert story.end("late") == []
    assert story.left is None


@pytest.mark.parametrize("first", [SIGTERM, SIGINT])
def test_a_second_signal_goes_to_all_at_once(first: Signals) -> None:
    """Who asks twice does not want to wait; the workers know what a second one means."""
    story = Story(one=1, two=2)
    story.signal(first)
    assert story.signal(first) == [f"one {first.name}", f"two {first.name}"]
    assert story.end("one") == []


def test_sigquit_goes_to_all_at_once() -> None:
    """A cold shutdown waits for nobody."""
    story = Story(one=1, two=2)
    assert story.signal(SIGQUIT) == ["one SIGQUIT", "two SIGQUIT"]


@pytest.mark.parametrize("number", [SIGHUP, SIGUSR1])
def test_other_signals_are_passed_on_and_stop_nothing(number: Signals) -> None:
    """What they mean is the workers' business."""
    story = Story(one=1, two=2)
    assert story.signal(number) == [f"one {number.name}", f"two {number.name}"]
    assert story.left is None
    assert story.signal(SIGTERM) == ["one SIGTERM"]


def test_an_untold_end_stops_the_others_level_by_level() -> None:
    """A group with a worker missing must not look healthy, whatever that one's exit code."""
    story = Story(one=1, two=2, three=3)
    assert story.end("two") == ["one SIGTERM"]
    assert story.end("one") == ["three SIGTERM"]


def test_an_end_out_of_turn_does_not_hurry_the_others() -> None:
    """While the first level is waited for, a later one that crashes changes only the exit code."""
    story = Story(one=1, two=2, three=3)
    story.signal(SIGTERM)
    assert story.end("two", 1) == []
    assert story.end("one") == ["three SIGTERM"]


def test_the_exit_code_is_the_worst_one() -> None:
    """Also when a later end was a good one."""
    story = Story(one=1, two=1, three=1)
    for name, code in (("one", 1), ("two", 137), ("three", 0)):
        story.end(name, code)
    assert story.plan.code == 137
    assert not story.plan.living


def test_a_level_that_does_not_end_is_asked_to_end_at_once_and_then_killed() -> None:
    """SIGQUIT lets Celery give messages back; SIGKILL is for who does not answer even that."""
    story = Story(one=1, two=1)
    story.signal(SIGTERM)
    assert story.left == TIMEOUT
    assert story.after(TIMEOUT - 1) == []
    assert story.end("two") == []
    assert story.after(1) == ["one SIGQUIT"]
    assert story.after(LAST_WORDS - 1) == []
    assert story.after(1) == ["one SIGKILL"]
    assert story.after(LAST_WORDS) == ["one SIGKILL"]


def test_every_level_has_the_whole_time() -> None:
    """One that had to be killed takes nothing from the next one, which is asked nicely again."""
    story = Story(one=1, two=2)
    story.signal(SIGTERM)
    story.after(TIMEOUT)
    story.after(LAST_WORDS)
    assert story.end("one", 128 + SIGKILL) == ["two SIGTERM"]
    assert story.left == TIMEOUT
    assert story.after(TIMEOUT) == ["two SIGQUIT"]


def test_repeated_signals_give_no_more_time() -> None:
    """An orchestrator that repeats SIGTERM does not keep a stuck worker alive."""
    story = Story(one=1)
    story.signal(SIGTERM)
    for _ in range(3):
        story.after(TIMEOUT / 4)
        story.signal(SIGTERM)
    assert story.after(TIMEOUT / 4) == ["one SIGQUIT"]


def test_stopping_is_never_longer_than_announced() -> None:
    """The bound that deployments are written by is what the plan does at worst."""
    story = Story(one=1, two=2, three=2)
    begin = story.now
    story.signal(SIGTERM)
    while story.plan.living:
        killed = [line for line in story.after(story.left or 0) if "SIGKILL" in line]
        for line in killed:
            story.end(line.split()[0])
    assert story.now - begin == longest_stop(TIMEOUT, levels=2)
