"""A worker that is drained takes nothing, keeps what runs, and goes on when it is told to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from celery.worker import state
from celery.worker.control import Panel

from celery_lease.worker import compat, control
from celery_lease.worker.drain import Drain
from celery_lease.worker.entries import Ending
from celery_lease.worker.shutdown import Shutdown
from unit.fake_broker import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator


class Draining(Bench):
    """A bench with the drain of its worker."""

    def __init__(self) -> None:
        super().__init__()
        self.cleared = 0
        self.shutdown = Shutdown(self.leases, Mock(hangs=lambda: False))
        self.drain = Drain(self.leases, self._clear)

    def _clear(self) -> None:
        self.cleared += 1


@pytest.fixture
def bench() -> Iterator[Draining]:
    """Return a worker without leases."""
    bench = Draining()
    yield bench
    bench.leases.close()


def test_a_drained_worker_takes_nothing_and_hands_back_what_waits(bench: Draining) -> None:
    """What runs stays; what waited is no loss; what the broker has given out is cleared."""
    bench.run("running")
    bench.receive("waiting")
    bench.drain.begin()
    assert bench.leases.backlogged
    assert bench.driver.sent("requeue") == ["waiting"]
    assert bench.leases.endings == {Ending.HANDED_BACK: 1}
    assert bench.leases.knows("running")
    assert bench.cleared == 1


def test_a_drain_tells_no_task_and_bounds_no_time(bench: Draining) -> None:
    """It is no shutdown: an hour later the task still runs, and its board says nothing."""
    held = bench.run()
    bench.drain.begin()
    bench.beat(held)
    assert not bench.leases.intake.stopping
    assert bench.flags_of(held) == 0
    assert not bench.board.shutting_down


def test_a_resumed_worker_takes_messages_again(bench: Draining) -> None:
    """And starts their tasks."""
    bench.drain.begin()
    assert bench.drain.end()
    assert not bench.leases.backlogged
    bench.receive("b")
    assert bench.leases.start("b")


def test_draining_twice_hands_back_what_came_in_between(bench: Draining) -> None:
    """And one resume is enough."""
    bench.drain.begin()
    bench.receive("late")
    bench.drain.begin()
    assert bench.driver.sent("requeue") == ["late"]
    assert bench.drain.end()
    assert bench.leases.intake.is_open


def test_a_worker_that_stops_does_not_go_on(bench: Draining) -> None:
    """Not even where the signal comes while the drain ends."""
    bench.drain.begin()
    bench.shutdown.ask()
    bench.shutdown.run_once()
    assert not bench.drain.end()
    assert not bench.leases.intake.is_open


def test_resuming_what_is_not_drained_changes_nothing(bench: Draining) -> None:
    """Two operators may both resume."""
    assert bench.drain.end()
    assert bench.leases.intake.is_open


def test_the_state_says_how_far_a_drain_is(bench: Draining) -> None:
    """Drained when it has no leases."""
    bench.run("running")
    assert bench.drain.state() == {
        "draining": False,
        "stopping": False,
        "ready": True,
        "leases": 1,
        "running": 1,
        "worker_id": "w1",
    }
    bench.drain.begin()
    bench.leases.complete("running")
    now = bench.drain.state()
    assert (now["draining"], now["ready"], now["leases"]) == (True, False, 0)


def test_the_remote_control_commands_reach_the_drain(bench: Draining) -> None:
    """Each by its name, as Celery finds it."""
    runtime = SimpleNamespace(drain=bench.drain, leases=bench.leases)
    node: Any = SimpleNamespace(consumer=SimpleNamespace(lease_runtime=runtime))
    assert Panel.data["lease_drain"](node) == {"ok": "draining", "worker": "w1"}
    assert Panel.data["lease_state"](node)["draining"] is True
    assert Panel.data["lease_resume"](node) == {"ok": "taking messages", "worker": "w1"}
    bench.shutdown.ask()
    assert Panel.data["lease_resume"](node)["error"] == "the worker is stopping"


@pytest.mark.parametrize("name", ["lease_drain", "lease_resume", "lease_state"])
def test_a_worker_without_leases_says_so(name: str) -> None:
    """A broadcast reaches every worker of the app, with leased tasks or without."""
    for consumer in (SimpleNamespace(), SimpleNamespace(lease_runtime=None)):
        assert Panel.data[name](SimpleNamespace(consumer=consumer)) == control.NO_LEASES


class Request:
    """A request as the worker's lists hold it; ``lease`` is gone or not."""

    def __init__(self, *, gone: bool | None) -> None:
        self.id = self.name = str(id(self))
        self.lease = None if gone is None else SimpleNamespace(gone=gone)
        self.acknowledged = False
        self.acks = 0
        self.task = SimpleNamespace(name="t")
        self._connection_errors = ()

    def _on_ack(self, *_: Any) -> None:
        self.acks += 1


def test_requests_whose_messages_went_back_free_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A countdown of an hour keeps no place in the prefetch window; others are left alone."""
    gone, scheduled = Request(gone=True), Request(gone=True)
    kept, plain = Request(gone=False), Request(gone=None)
    monkeypatch.setattr(state, "reserved_requests", {gone, kept, plain})
    monkeypatch.setattr(state, "scheduled_requests", {scheduled}, raising=False)
    ready: list[Any] = []
    monkeypatch.setattr(compat, "mark_ready", ready.append)
    compat.forget_requests(lambda lease: lease.gone)
    compat.forget_requests(lambda lease: lease.gone)
    assert [each.acks for each in (gone, scheduled, kept, plain)] == [1, 1, 0, 0]
    assert set(ready) == {gone, scheduled}
