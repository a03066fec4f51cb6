"""What a worker tells of the leases it holds."""

from __future__ import annotations

import json
import math
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

from celery_lease import board as beatboard
from celery_lease.board import Board
from celery_lease.worker import control
from celery_lease.worker.telemetry.report import describe
from unit.fakes import PATIENCE

if TYPE_CHECKING:
    import pytest

    from celery_lease.board import Slot
    from celery_lease.worker.registry import LeaseEntry
    from unit.fake_broker import Bench

NEW_YEAR = 1893456000.0  # 2030, when the clock of a test begins


def slot_of(held: LeaseEntry) -> Slot:
    """Return the record of a task that runs."""
    assert held.slot is not None
    return held.slot


def test_a_running_task_is_described_with_what_it_said(bench: Bench) -> None:
    """Times since 1970, durations in seconds, all of it JSON."""
    held = bench.run(pid=42)
    bench.clock.advance(4.0)
    bench.beat(held)
    bench.board.report(slot_of(held), 3, 8, "encoding")
    bench.clock.advance(1.5)
    (row,) = json.loads(json.dumps(describe(bench.leases)))
    assert (row["task"], row["id"], row["state"]) == ("t", "id-a", "running")
    assert (row["held_since"], row["started_at"]) == (NEW_YEAR, NEW_YEAR)
    assert (row["beat_age"], row["remaining"], row["deadline"]) == (1.5, 4.5, NEW_YEAR + 10)
    assert row["progress"] == {"done": 3.0, "total": 8.0, "note": "encoding", "rate": None}
    assert (row["deliveries"], row["losses"], row["token"], row["tag"]) == (1, 0, 1, "a")
    assert (row["pid"], row["mode"], row["extension"]) == (42, "heartbeat", 10.0)
    assert (row["worker"], row["queue"], row["cancelled"]) == ("w1", "q", False)


def test_what_waits_has_no_beat_and_no_progress(bench: Bench) -> None:
    """Also what the pool has got, until a process takes it; whatever the main loop knows."""
    bench.receive("a")
    bench.receive("b")
    bench.leases.start("b")
    rows = describe(bench.leases)
    assert [row["state"] for row in rows] == ["reserved", "reserved"]
    assert {row["beat_age"] for row in rows} == {row["started_at"] for row in rows} == {None}
    assert rows[0]["progress"] == {"done": None, "total": None, "note": "", "rate": None}
    bench.write(bench.held("b"), beatboard.STARTED)
    assert describe(bench.leases, ["id-b"])[0]["state"] == "running"


def test_a_lost_lease_is_told_with_its_reason(bench: Bench) -> None:
    """Its task runs on until its next beat, and is not hidden meanwhile."""
    bench.run()
    bench.passed(11.0)
    (row,) = describe(bench.leases)
    assert (row["state"], row["lost"], row["remaining"]) == ("lost", "expired", 0.0)


def test_some_tasks_may_be_asked_for(bench: Bench) -> None:
    """By their ids; no other is described."""
    for tag in "abc":
        bench.receive(tag)
    assert [row["id"] for row in describe(bench.leases, ["id-c", "x"])] == ["id-c"]


def test_numbers_that_json_has_not_are_left_out(bench: Bench) -> None:
    """A task may report any number; a reply must be readable by every client."""
    held = bench.run()
    bench.board.report(slot_of(held), math.inf, math.nan, None)
    (row,) = describe(bench.leases)
    assert row["progress"] == {"done": None, "total": None, "note": "", "rate": None}


def test_a_lease_that_ends_meanwhile_is_left_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record may be lent to another task, whose words are not its own."""
    bench.leases.board = bench.board = Board.create(2, epoch=0.0)
    bench.run("a")
    read = bench.board.read_progress

    def end_first(slot: Slot) -> beatboard.Progress:
        bench.leases.complete("a")
        bench.receive("b")
        bench.leases.start("b")
        return read(slot)

    monkeypatch.setattr(bench.board, "read_progress", end_first)
    assert describe(bench.leases) == []


def test_the_board_is_read_outside_of_the_lock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper must not wait for an onlooker, however many leases there are."""
    held, free = bench.run(), []
    read = bench.board.read_progress

    def look(slot: Slot) -> beatboard.Progress:
        def take() -> None:
            free.append(bench.leases.lock.acquire(timeout=PATIENCE))
            bench.leases.lock.release()

        other = threading.Thread(target=take)
        other.start()
        other.join()
        return read(slot)

    monkeypatch.setattr(bench.board, "read_progress", look)
    assert describe(bench.leases)[0]["id"] == held.lease.task_id
    assert free == [True]


def test_the_command_takes_one_id_or_many(bench: Bench) -> None:
    """And a worker without leases holds none."""
    bench.receive("a")
    bench.receive("b")
    runtime = SimpleNamespace(leases=bench.leases)
    state = SimpleNamespace(consumer=SimpleNamespace(lease_runtime=runtime))
    assert len(control.leases(state)) == len(control.leases(state, task_id=[])) == 2
    assert [row["tag"] for row in control.leases(state, task_id="id-b")] == ["b"]
    assert control.leases(SimpleNamespace(consumer=SimpleNamespace())) == []
