"""Wrong, stepped and stopped clocks: which clock decides what, as docs/guarantees.md says it.

Wall clocks decide nothing here, so a worker whose clock is hours wrong keeps and loses leases as
every other. ``harness/wrong_clock.c`` makes clocks wrong for whole processes, and steps them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import harness
from harness.relay_stage import EXTENSION, MODULE, RelayStage
from harness.waiting import always
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.brokers import RedisServer
    from harness.workers import Worker

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

ONCE = [("start", 1), ("end", 1)]
HOURS = 7 * 3600


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that gives a process a wall clock of its own, made now."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler on the PATH")
    made = tmp_path_factory.mktemp("clock") / "wrong_clock.so"
    source = Path(harness.__file__).parent / "wrong_clock.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, source], check=True)
    return made


@pytest.fixture
def stage(valkey: RedisServer, tmp_path: Path) -> Iterator[RelayStage]:
    """A database whose tasks find out about a loss by themselves; a busy worker takes nothing."""
    conf = {"lease_watchdog_threshold": 300, "worker_prefetch_multiplier": 1}
    stage = RelayStage(valkey, tmp_path, **conf)
    yield stage
    stage.close()


class WrongClock:
    """A wall clock for workers; its offset can be changed while they run."""

    def __init__(self, library: Path, file: Path) -> None:
        self._library, self._file = library, file
        file.write_bytes(bytes(8))

    def set(self, seconds: int) -> None:
        """Let it be wrong by so many seconds."""
        with self._file.open("r+b") as file:  # in place: it is mapped
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

    def worker(self, stage: RelayStage, pool: str = "prefork", concurrency: int = 1) -> Worker:
        env = {"LD_PRELOAD": str(self._library), "WRONG_CLOCK": str(self._file)}
        options = WorkerOptions(module=MODULE, pool=pool, concurrency=concurrency, env=env)
        return stage.fleet.launch(stage.setup, options)


@pytest.fixture
def clocks(library: Path, tmp_path: Path) -> list[WrongClock]:
    """Two clocks, hours wrong in both directions."""
    clocks = [WrongClock(library, tmp_path / f"clock-{number}") for number in range(2)]
    for clock, hours in zip(clocks, (-HOURS, HOURS), strict=True):
        clock.set(hours)
    return clocks


def test_wrong_clocks_neither_keep_nor_lose_a_lease(
    stage: RelayStage, clocks: list[WrongClock]
) -> None:
    """I1: a worker hours behind and one hours ahead: neither takes what the other holds.

    The log's own times show that the clocks were wrong.
    """
    workers = [clock.worker(stage) for clock in clocks]
    for worker in workers:
        worker.wait_ready()
    tasks = stage.send_many(2, "beats", 2.5 * EXTENSION)
    for task_id in tasks:
        stage.wait("end", task_id, within=40)
    stage.wait_settled()
    assert [stage.runs(task_id) for task_id in tasks] == [ONCE] * 2
    assert len({entry.worker for entry in stage.ledger.entries("end")}) == 2
    today = time.strftime("[%Y-%m-%d %H", time.gmtime())
    assert not any(today in line for worker in workers for line in worker.log.splitlines()[-3:])


def test_between_wrong_clocks_a_dead_worker_s_task_is_taken_over_in_time(
    stage: RelayStage, clocks: list[WrongClock]
) -> None:
    """The broker's clock decides: neither at once nor hours later."""
    ahead = clocks[1].worker(stage).wait_ready()
    task_id = stage.send("beats", 4 * EXTENSION)
    first = stage.wait("start", task_id)
    clocks[0].worker(stage).wait_ready()
    ahead.kill_group()
    stage.wait("end", task_id, within=40)
    again = stage.ledger.entries("start", task_id)[1]
    assert EXTENSION * 0.9 < again.at - first.at < 60
    assert stage.runs(task_id) == [("start", 1), ("start", 2), ("end", 2)]


def test_a_clock_that_is_stepped_under_a_running_task_changes_nothing(
    stage: RelayStage, clocks: list[WrongClock]
) -> None:
    """Hours back and hours ahead, in the middle of a lease; what was lost stays so, too."""
    clock = clocks[0]
    worker = clock.worker(stage, "prefork", 2).wait_ready()
    beats, stuck = stage.send("beats", 3 * EXTENSION), stage.send("stuck", 1.5 * EXTENSION)
    for task_id in (beats, stuck):
        stage.wait("start", task_id)
    for hours in (HOURS, -HOURS, 0):
        clock.set(hours)
        assert always(lambda: worker.returncode is None, EXTENSION / 2)
    stage.wait("end", beats, within=40)
    stage.wait("end", stuck, within=40)
    stage.wait_settled(20)
    assert stage.runs(beats) == ONCE
    assert sorted(stage.runs(stuck)) == [("end", 2), ("lost", 1), ("start", 1), ("start", 2)]
    assert worker.returncode is None


def test_a_stopped_main_process_loses_what_it_cannot_extend(stage: RelayStage) -> None:
    """Its task runs on and beats, but nobody passes that on: told at the deadline, not after.

    The task process reads the deadline from the board by itself.
    """
    first = stage.start()
    task_id = stage.send("beats", 3 * EXTENSION)
    start = stage.wait("start", task_id)
    first.stop()
    lost = stage.wait("lost", task_id, within=20)
    assert lost.at - start.at < 2.5 * EXTENSION
    stage.start()
    stage.wait("end", task_id, within=40)
    first.cont()
    stage.wait_settled(20)
    assert sorted(stage.runs(task_id)) == [("end", 2), ("lost", 1), ("start", 1), ("start", 2)]
    assert first.returncode is None


def test_a_stopped_task_process_is_ended_and_its_slot_is_free_again(
    valkey: RedisServer, tmp_path: Path
) -> None:
    """Beyond its lease: the watchdog ends it, the same worker runs the message in a new process."""
    stage = RelayStage(valkey, tmp_path / "stopped")
    try:
        worker = stage.start()
        task_id = stage.send("beats", EXTENSION)
        start = stage.wait("start", task_id)
        os.kill(start.pid, signal.SIGSTOP)
        stage.wait("end", task_id, within=40)
        stage.wait_settled()
        assert stage.runs(task_id) == [("start", 1), ("start", 2), ("end", 2)]
        assert "is stopped: it is ended" in worker.log
    finally:
        stage.close()
