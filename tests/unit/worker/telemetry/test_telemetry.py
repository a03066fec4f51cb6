"""What a look at a worker shows to those who watch over it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from celery_lease import board as beatboard
from celery_lease.core.lease import State
from celery_lease.core.policy import Mode
from celery_lease.worker import telemetry as telemetry_module
from unit.fake_broker import POLICY, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_lease.worker.telemetry import Telemetry


@pytest.fixture
def telemetry(bench: Bench) -> Iterator[Telemetry]:
    """Return what that worker shows, while it runs."""
    telemetry = bench.telemetry()
    telemetry_module.begin(telemetry)
    yield telemetry
    telemetry_module.end(telemetry)


def test_leases_are_told_apart_by_state_task_and_queue(bench: Bench, telemetry: Telemetry) -> None:
    """A lost one stays in sight as long as its task runs."""
    bench.run("lost")
    bench.clock.advance(10.5)
    bench.receive("waits")
    bench.run("runs", task="other")
    bench.keeper.run_once()
    assert telemetry.look().held == {
        (State.LOST, "t", "q"): 1,
        (State.RESERVED, "t", "q"): 1,
        (State.RUNNING, "other", "q"): 1,
    }


def test_the_longest_silence_is_that_of_a_task_that_is_to_beat(
    bench: Bench, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a daemon's, and not one that announced to be quiet."""
    monkeypatch.setattr("celery_lease.worker.keeper.is_alive", lambda _: True)
    assert telemetry.look().silence == 0.0
    bench.run("daemon", policy=replace(POLICY, mode=Mode.DAEMON))
    quiet = bench.run("quiet", policy=replace(POLICY, interval=0.5))
    bench.write(quiet, beatboard.QUIET, bench.clock.now() + 60)
    bench.passed(2.0)
    assert telemetry.look().silence == 0.0
    bench.run("beats")
    bench.passed(1.5)
    assert telemetry.look().silence == 1.5


def test_the_lease_that_ends_first_is_seen_coming(bench: Bench, telemetry: Telemetry) -> None:
    """Only of tasks that run; nothing is told of none."""
    bench.receive("waits")
    assert telemetry.look().remaining is None
    bench.run("first")
    bench.passed(3.0)
    bench.run("second")
    assert telemetry.look().remaining == 7.0


def test_a_keeper_that_stands_still_is_later_and_later(bench: Bench, telemetry: Telemetry) -> None:
    """Its last pass was in time: that says nothing of the one that does not come."""
    wait = bench.passed().wait
    bench.clock.advance(wait + 5.0)
    assert telemetry.keeper_lag() == pytest.approx(5.0)


def test_a_forked_child_has_no_worker_to_show(telemetry: Telemetry) -> None:
    """It would count everything twice."""
    assert telemetry_module.running() == [telemetry]
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, b"%d" % len(telemetry_module.running()))
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 10) == b"0"
    os.close(reader)
    os.close(writer)


def test_a_worker_that_ended_is_not_shown(telemetry: Telemetry) -> None:
    """Also when it is ended twice, as by a reconnect in a shutdown."""
    telemetry_module.end(telemetry)
    telemetry_module.end(telemetry)
    assert telemetry_module.running() == []
