"""A thread that does one thing again and again, and what becomes of its failures."""

from __future__ import annotations

import threading

import pytest

from celery_lease.worker.service import Service
from unit.fakes import PATIENCE

NEVER = 3600.0


class Work:
    """A function that counts its calls and does what the test says."""

    def __init__(self, *outcomes: float | BaseException) -> None:
        self.outcomes = list(outcomes)
        self.calls = threading.Semaphore(0)
        self.died = threading.Event()

    def __call__(self) -> float:
        outcome = self.outcomes.pop(0) if self.outcomes else NEVER
        self.calls.release()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def called(self) -> bool:
        """Wait for one more call."""
        return self.calls.acquire(timeout=PATIENCE)

    def service(self, retry: float = 0.0) -> Service:
        return Service("work", self, retry=retry, on_death=self.died.set)


def test_it_calls_again_after_the_wait_that_was_returned() -> None:
    """Three short waits make four calls; the fourth asks for an hour."""
    work = Work(0.0, 0.0, 0.0)
    service = work.service()
    service.start()
    assert all(work.called() for _ in range(4))
    assert service.stop(PATIENCE)
    assert not work.calls.acquire(blocking=False)


def test_waking_it_ends_its_wait() -> None:
    """It waits for an hour, until it is woken."""
    work = Work()
    service = work.service()
    service.start()
    assert work.called()
    service.wake()
    assert work.called()
    assert service.stop(PATIENCE)


def test_a_failure_is_logged_and_the_next_call_comes(caplog: pytest.LogCaptureFixture) -> None:
    """An exception ends neither the thread nor the worker."""
    work = Work(RuntimeError("broken"))
    service = work.service()
    service.start()
    assert work.called()
    assert work.called()
    assert service.stop(PATIENCE)
    assert "broken" in caplog.text
    assert not work.died.is_set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_stops_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    """What is no ordinary exception ends the thread, and then the worker, which says why."""
    work = Work(GeneratorExit())
    service = work.service()
    service.start()
    assert work.died.wait(PATIENCE)
    service._thread.join(PATIENCE)
    assert not service.running
    assert "work died; the worker stops" in caplog.text


def test_stopping_waits_for_the_call_under_way_no_longer_than_told() -> None:
    """A call that hangs keeps nobody; the thread ends with it, and the worker does not stop."""
    hangs, release = threading.Event(), threading.Event()

    def hang() -> float:
        hangs.set()
        release.wait(PATIENCE)
        return 0.0

    died = threading.Event()
    service = Service("work", hang, retry=0.0, on_death=died.set)
    service.start()
    assert hangs.wait(PATIENCE)
    assert not service.stop(0.01)
    release.set()
    service._thread.join(PATIENCE)
    assert not service.running
    assert not died.is_set()


def test_stopping_what_never_started_is_nothing() -> None:
    """A worker that failed in between can stop everything; what was stopped does not start."""
    service = Work().service()
    assert service.stop(PATIENCE)
    service.start()
    assert not service.running


def test_starting_twice_starts_one_thread() -> None:
    """The consumer's step starts at each connection."""
    work = Work()
    service = work.service()
    service.start()
    service.start()
    assert work.called()
    assert service.stop(PATIENCE)
