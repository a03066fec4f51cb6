"""What a heartbeat remembers, and whom it tells."""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from celery_lease.core.heartbeat import Heartbeat
from unit.fakes import PATIENCE, FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that the test moves."""
    return FakeClock()


@pytest.fixture
def heartbeat(clock: FakeClock) -> Heartbeat:
    """Return a heartbeat on that clock."""
    return Heartbeat(clock=clock)


def in_threads(count: int, work: Callable[[], object]) -> None:
    """Run ``work`` in ``count`` threads that start together, and wait for all of them."""
    together = threading.Barrier(count)

    def run() -> None:
        together.wait(PATIENCE)
        work()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_silence_is_counted_from_creation_until_the_first_beat(
    clock: FakeClock, heartbeat: Heartbeat
) -> None:
    """Breaks when work that never beats looks as if it just did, or as silent since boot."""
    clock.advance(7)
    assert heartbeat.elapsed() == 7
    assert heartbeat.beats == 0


def test_silence_is_counted_from_the_last_beat(clock: FakeClock, heartbeat: Heartbeat) -> None:
    """Breaks when a beat does not move the time, or an earlier beat wins."""
    clock.advance(7)
    heartbeat.beat()
    clock.advance(2)
    heartbeat.beat()
    assert heartbeat.elapsed() == 0
    clock.advance(3)
    assert heartbeat.elapsed() == 3


def test_beats_within_one_clock_tick_are_told_apart(heartbeat: Heartbeat) -> None:
    """Breaks when "a new beat" is judged by the time alone."""
    heartbeat.beat()
    heartbeat.beat()
    assert heartbeat.beats == 2


def test_callbacks_run_at_every_beat_in_the_order_they_were_added(heartbeat: Heartbeat) -> None:
    """Breaks when a callback is skipped, doubled or reordered."""
    called: list[str] = []
    heartbeat.add_callback(lambda: called.append("first"))
    heartbeat.add_callback(lambda: called.append("second"))
    heartbeat.beat()
    heartbeat.beat()
    assert called == ["first", "second"] * 2


def test_a_callback_sees_the_beat_that_called_it(clock: FakeClock, heartbeat: Heartbeat) -> None:
    """Breaks when callbacks run before the beat is written down."""
    seen: list[tuple[float, int]] = []
    heartbeat.add_callback(lambda: seen.append((heartbeat.elapsed(), heartbeat.beats)))
    clock.advance(5)
    heartbeat.beat()
    assert seen == [(0, 1)]


def test_a_failing_callback_is_logged_with_its_traceback_and_skipped(
    heartbeat: Heartbeat, caplog: pytest.LogCaptureFixture
) -> None:
    """Breaks when a failure reaches the work, silences later callbacks or leaves no traceback."""
    called: list[str] = []

    def fail() -> None:
        raise ValueError("metrics are down")

    heartbeat.add_callback(fail)
    heartbeat.add_callback(lambda: called.append("after"))
    heartbeat.beat()
    assert called == ["after"]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "metrics are down" in caplog.text
    assert "fail" in record.getMessage()


def test_an_interrupt_in_a_callback_ends_the_work(heartbeat: Heartbeat) -> None:
    """Breaks when Ctrl-C or a worker's exit during a beat is taken for a failing callback."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    heartbeat.add_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        heartbeat.beat()


def test_a_removed_callback_is_not_told_any_more(heartbeat: Heartbeat) -> None:
    """Breaks when removing does nothing, or removes the wrong or both of two registrations."""
    called: list[str] = []

    def removed() -> None:
        called.append("removed")

    heartbeat.add_callback(removed)
    heartbeat.add_callback(lambda: called.append("kept"))
    heartbeat.add_callback(removed)
    heartbeat.remove_callback(removed)
    heartbeat.beat()
    heartbeat.remove_callback(removed)
    heartbeat.beat()
    assert called == ["kept", "removed", "kept"]


def test_removing_a_callback_that_is_not_registered_is_an_error(heartbeat: Heartbeat) -> None:
    """Breaks when a mistyped removal passes unnoticed and the callback goes on being told."""
    with pytest.raises(ValueError, match="not in list"):
        heartbeat.remove_callback(print)


def test_a_callback_may_change_the_callbacks(heartbeat: Heartbeat) -> None:
    """Breaks when callbacks run under the lock or over a list that changes under them."""
    called: list[str] = []

    def once() -> None:
        called.append("once")
        heartbeat.remove_callback(once)
        heartbeat.add_callback(lambda: called.append("later"))

    heartbeat.add_callback(once)
    heartbeat.beat()
    heartbeat.beat()
    assert called == ["once", "later"]


def test_a_callback_that_hangs_holds_up_no_other_thread(
    clock: FakeClock, heartbeat: Heartbeat
) -> None:
    """Breaks when callbacks run under a lock that beats, readers or registration need."""
    entered, released = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        assert released.wait(PATIENCE)

    heartbeat.add_callback(hang)
    stuck = threading.Thread(target=heartbeat.beat)
    stuck.start()
    assert entered.wait(PATIENCE)
    clock.advance(4)
    heartbeat.remove_callback(hang)
    in_threads(1, heartbeat.beat)
    assert (heartbeat.beats, heartbeat.elapsed()) == (2, 0)
    assert stuck.is_alive()
    released.set()
    stuck.join(PATIENCE)
    assert not stuck.is_alive()


def test_a_beat_that_was_overtaken_does_not_turn_back_the_time(clock: FakeClock) -> None:
    """Breaks when a thread that read the clock early and wrote late makes the last beat older."""
    reading, release = threading.Event(), threading.Event()

    class SlowFor(FakeClock):
        slow: threading.Thread | None = None

        def now(self) -> float:
            now = clock.now()
            if threading.current_thread() is self.slow:
                reading.set()
                assert release.wait(PATIENCE)
            return now

    slow_clock = SlowFor()
    heartbeat = Heartbeat(clock=slow_clock)
    slow_clock.slow = threading.Thread(target=heartbeat.beat)
    slow_clock.slow.start()
    assert reading.wait(PATIENCE)
    clock.advance(10)
    heartbeat.beat()
    release.set()
    slow_clock.slow.join(PATIENCE)
    assert heartbeat.elapsed() == 0
    assert heartbeat.beats == 2


def test_no_beat_of_many_threads_is_lost(heartbeat: Heartbeat) -> None:
    """Breaks when counting or telling is not safe among threads."""
    called: list[None] = []
    heartbeat.add_callback(lambda: called.append(None))

    def beat() -> None:
        for _ in range(2000):
            heartbeat.beat()

    in_threads(4, beat)
    assert heartbeat.beats == len(called) == 8000


def test_registering_and_removing_in_many_threads_loses_no_callback(heartbeat: Heartbeat) -> None:
    """Breaks when one thread's registration is written over by another's removal."""
    called: list[None] = []

    class Passing:
        def __eq__(self, other: object) -> bool:  # comparing is where removals can be interrupted
            return self is other

        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None:
            raise AssertionError("was removed")

    def register() -> None:
        for _ in range(100):
            passing = Passing()
            heartbeat.add_callback(passing)
            heartbeat.add_callback(lambda: called.append(None))
            heartbeat.remove_callback(passing)

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(4, register)
    finally:
        sys.setswitchinterval(switching)
    heartbeat.beat()
    assert len(called) == 400


def test_the_host_clock_is_the_default() -> None:
    """Breaks when a heartbeat without a clock cannot be made or runs on a clock of its own."""
    heartbeat = Heartbeat()
    heartbeat.beat()
    assert 0 <= heartbeat.elapsed() < PATIENCE
