"""One sweep for expired leases."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from celery_lease.core.delivery import Reaped
from celery_lease.worker.reaper import BATCH, BATCHES, RECOVERED, RUNS, STALE, Reaper
from unit.fake_broker import FakeDriver
from unit.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator


class Expired(FakeDriver):
    """A broker with some expired leases."""

    def __init__(self, count: int) -> None:
        super().__init__(FakeClock())
        self.left = count
        self.limits: list[int] = []

    def reap(self, *, limit: int) -> list[Reaped]:
        self.limits.append(limit)
        found = min(self.left, limit)
        self.left -= found
        about = {"task": "t", "id": "id", "worker": "w1"}
        return [Reaped(tag="a", queue="q", late=1.25, about=about) for _ in range(found)]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Keep the log's level where these tests read it."""
    with caplog.at_level(logging.WARNING):
        yield


def test_nothing_expired_is_one_call_and_no_word(caplog: pytest.LogCaptureFixture) -> None:
    """I8: an idle sweep costs one question."""
    driver = Expired(0)
    assert Reaper(driver).run_once() == []
    assert driver.limits == [BATCH]
    assert not caplog.records


def test_each_message_is_told_with_its_task_and_former_holder(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An operator reads which worker went silent, and how long ago."""
    Reaper(Expired(1)).run_once()
    (record,) = caplog.records
    assert record.getMessage() == (
        "lease of task t[id] held by w1 expired 1.2 s ago: message returned to queue"
    )


def test_many_go_back_in_batches_and_no_sweep_is_endless() -> None:
    """A batch that is not full is the last one; what is too much waits for the next sweep."""
    some, many = Expired(BATCH + 1), Expired(BATCH * BATCHES + 1)
    assert len(Reaper(some).run_once()) == BATCH + 1
    assert len(some.limits) == 2
    assert len(Reaper(many).run_once()) == BATCH * BATCHES
    assert many.left == 1


def test_a_silent_broker_is_told_to_the_caller() -> None:
    """The next sweep tries again."""
    with pytest.raises(OSError, match=str(BATCH)):
        Reaper(FakeDriver(FakeClock())).run_once()


def test_plain_messages_failures_and_rests_are_told_apart_and_not_all_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line for many plain ones; only what came back from a late holder is counted."""
    late = Reaped(tag="a", queue="q", late=2.0, about={})
    batch = [
        late,
        replace(late, leased=False),
        replace(late, leased=False),
        replace(late, error="no list"),
        replace(late, rested=True),
    ]
    driver = Expired(0)
    driver.reap = lambda *, limit: batch[:limit]  # type: ignore[method-assign]
    reaper = Reaper(driver)
    with caplog.at_level(logging.INFO):
        reaper.run_once()
    assert [record.levelname for record in caplog.records] == [
        "WARNING",
        "WARNING",
        "ERROR",
        "INFO",
    ]
    assert reaper.stats.read() == {RECOVERED: 3, STALE: 6.0, RUNS: 1}


def test_a_sweep_without_an_answer_is_none() -> None:
    """An exporter shows that sweeps do not happen."""
    reaper = Reaper(FakeDriver(FakeClock()))
    with pytest.raises(OSError, match=str(BATCH)):
        reaper.run_once()
    assert reaper.stats.runs == 0
