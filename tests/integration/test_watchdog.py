"""The watchdog on real workers: what says nothing is ended, what cannot be ended is disowned."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import psutil
import pytest

from celery_lease import probe
from harness.ledger import now
from harness.monitor import lease_events
from harness.stage import RedisStage
from harness.waiting import eventually, free_port
from harness.workers import QUIET_PEERS, Worker, WorkerFleet

if TYPE_CHECKING:
    from pathlib import Path

    from harness.brokers import RedisServer
    from harness.setup import Setup

EXTENSION = 4.0
SILENCE = 60.0  # far beyond every patience here
START_METHODS = ("fork", "spawn")


class Stage(RedisStage):
    """Tasks that fall silent in many ways."""

    program = "watchdog"
    conf: ClassVar[dict[str, Any]] = {"lease_extension": EXTENSION}
    extra = QUIET_PEERS

    def runs(self, task_id: str) -> list[tuple[str, int]]:
        return [
            (entry.event, entry.facts["deliveries"])
            for entry in self.ledger.entries(task_id=task_id)
        ]


@pytest.fixture
def stage(setup: Setup, valkey: RedisServer, fleet: WorkerFleet) -> Stage:
    """An empty database, and leases of 4 s."""
    return Stage(setup, valkey, fleet)


def has_run(stage: Stage, task_id: str, event: tuple[str, int]) -> bool:
    """Whether an event is among those of a task."""
    return event in stage.runs(task_id)


def stalled(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the watchdog."""
    return [event for event in events if event["type"] == "lease-stalled"]


def line_of(worker: Worker, task_id: str, text: str) -> str:
    """Return the log line that says a text about a task, with the lines that follow it."""
    lines = worker.log.splitlines()
    at = next(i for i, line in enumerate(lines) if task_id in line and text in line)
    return "\n".join(lines[at : at + 30])


def test_silent_tasks_are_diagnosed_ended_and_run_again_beside_others(stage: Stage) -> None:
    """Busy, blocked and stopped ones alike; their neighbour in the same worker notices nothing."""
    worker = stage.worker("prefork", 4, "-E")
    ways = ("busy", "blocked", "stopped")
    neighbour = stage.send("beats", 3 * EXTENSION)
    stage.ledger.wait("start", neighbour)
    before = set(worker.children())
    with lease_events(stage.app) as heard:
        silent = {way: stage.send("watched", way, SILENCE) for way in ways}
        starts = {way: stage.ledger.wait("start", task_id)[0] for way, task_id in silent.items()}
        eventually(lambda: len(stalled(heard())) == 3, 20, what="three events")
        events = stalled(heard())
    for way, task_id in silent.items():
        stage.ledger.wait("end", task_id)
        assert stage.runs(task_id) == [("start", 1), ("start", 2), ("end", 2)]
        again = stage.ledger.entries("start", task_id)[1]
        assert again.at - starts[way].at < EXTENSION  # released at once, not at the expiry
        eventually(lambda: not psutil.pid_exists(starts[way].pid), 5)  # noqa: B023
    found = {event["uuid"]: event for event in events}
    assert "busy on CPU" in found[silent["busy"]]["doing"]
    assert "blocked in a call" in found[silent["blocked"]]["doing"]
    assert found[silent["stopped"]]["doing"] == "stopped"
    assert all(event["ended"] and event["silent"] >= 1.5 for event in events)
    assert "in burn_the_processor" in line_of(worker, silent["busy"], "has not beaten")
    assert "in wait_in_a_call" in line_of(worker, silent["blocked"], "has not beaten")
    stage.ledger.wait("end", neighbour)
    assert stage.runs(neighbour) == [("start", 1), ("end", 1)]
    after = set(worker.children())
    assert len(after) == 4
    assert before - after == {entry.pid for entry in starts.values()}  # only these were replaced
    eventually(stage.is_clean, 5)


def test_without_a_threshold_it_is_the_lease_that_decides(stage: Stage) -> None:
    """Ended at the expiry; not where the loss is to be ignored, or the process is proof enough."""
    worker = stage.worker("prefork", 4)
    ended = stage.send("silent", "blocked", SILENCE)
    others = [stage.send(task, 2 * EXTENSION) for task in ("careless", "daemon", "observed")]
    stage.ledger.wait("end", ended)
    starts = stage.ledger.entries("start", ended)
    assert starts[1].at - starts[0].at >= EXTENSION * 0.99
    for task_id in others:
        # The first run goes on to its end.
        eventually(partial(has_run, stage, task_id, ("end", 1)), 20)
    assert worker.log.count("it is ended") == 1
    eventually(stage.is_clean, 10)


@pytest.mark.parametrize(("pool", "concurrency"), [("threads", 2), ("solo", 1)])
def test_a_worker_whose_every_slot_is_disowned_leaves_with_an_error(
    stage: Stage, pool: str, concurrency: int
) -> None:
    """Their messages and those that wait are back at once, for the worker that replaces it."""
    worker = stage.worker(pool, concurrency)
    silent = [stage.send("watched", "blocked", SILENCE) for _ in range(concurrency)]
    stage.ledger.wait("start", count=concurrency)
    stage.send("beats", 0.1, countdown=SILENCE)
    assert worker.wait(20) == 1
    assert worker.log.count("it is disowned") == concurrency
    assert worker.log.count("in wait_in_a_call") >= concurrency
    assert "every slot" in worker.log
    assert stage.redis.llen("celery") == concurrency + 1
    assert stage.is_clean()
    stage.worker(pool, concurrency)
    for task_id in silent:
        stage.ledger.wait("end", task_id)
        # What went back first may have waited in the same worker once more.
        assert [event for event, _ in stage.runs(task_id)] == ["start", "start", "end"]


def test_a_disowned_thread_frees_its_slot_when_it_ends_and_has_no_outcome(stage: Stage) -> None:
    """One of two slots: the worker stays, runs the message in the other, and drops the late end.

    It is not ready meanwhile, and alive.
    """
    port = free_port()
    worker = stage.having(lease_health_port=port).worker("threads", 2)
    task_id = stage.send("watched", "blocked", 6)
    eventually(lambda: probe.ask(probe.READY, port=port)[0] is False, 6)
    assert probe.ask(probe.LIVE, port=port)[0]
    stage.ledger.wait("end", task_id)
    assert stage.runs(task_id) == [("start", 1), ("start", 2), ("end", 2)]
    stage.ledger.wait("end", task_id, count=2)
    assert stage.app.AsyncResult(task_id).get(timeout=5) == 2  # not the loser's 1
    eventually(lambda: probe.ask(probe.READY, port=port)[0], 10)
    last = stage.send("beats", 0.2)
    stage.ledger.wait("end", last)
    assert worker.returncode is None
    eventually(stage.is_clean, 5)


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_silent_greenlet_is_ended_alone(stage: Stage, pool: str) -> None:
    """Its slot is free at once; its neighbour goes on."""
    worker = stage.worker(pool, 2)
    neighbour = stage.send("beats", 2 * EXTENSION)
    silent = stage.send("watched", "blocked", SILENCE)
    stage.ledger.wait("end", silent)
    assert stage.runs(silent) == [("start", 1), ("start", 2), ("end", 2)]
    stage.ledger.wait("end", neighbour)
    assert "in wait_in_a_call" in worker.log
    assert "disowned" not in worker.log
    eventually(stage.is_clean, 5)


@pytest.mark.parametrize("method", START_METHODS)
def test_no_task_process_outlives_its_main_process(stage: Stage, method: str) -> None:
    """Neither those that it began with nor one that replaced another, whatever they do."""
    if method == "spawn" and not _can_spawn():
        pytest.skip("this Celery only forks")
    worker = stage.having(worker_pool_start_method=method).worker("prefork", 2)
    first = worker.children()
    killed_task = stage.send("silent", "blocked", SILENCE)
    os.kill(stage.ledger.wait("start", killed_task)[0].pid, signal.SIGKILL)
    stage.ledger.wait("end", killed_task, within=60)  # a spawned process imports everything anew
    eventually(lambda: len(set(worker.children()) - set(first)) == 1, 60, what="a replacement")
    stage.send("beats", SILENCE)
    stage.send("silent", "blocked", SILENCE)
    stage.ledger.wait("start", count=4, within=60)
    children = {entry.pid for entry in stage.ledger.entries("start")}
    children |= set(worker.children())
    worker.kill()
    killed = now()
    eventually(lambda: not any(map(psutil.pid_exists, children)), 10, what="no orphan")
    assert now() - killed < 10


@pytest.mark.parametrize(
    ("pool", "killed"),
    [
        *((pool, "worker") for pool in ("prefork", "threads", "solo", "gevent", "eventlet")),
        ("prefork", "task"),
    ],
)
def test_a_command_does_not_run_beside_its_successor(
    stage: Stage, tmp_path: Path, pool: str, killed: str
) -> None:
    """A shell that ignores SIGTERM, and its child in a session of its own, end with the process."""
    pids = tmp_path / "pids"
    line = (
        f"trap '' TERM; echo $$ >> {pids}; setsid sh -c 'echo $$ >> {pids}; exec sleep 99' & wait"
    )
    worker = stage.worker(pool)
    task_id = stage.send("command", line)
    start = stage.ledger.wait("start", task_id, within=40)[0]
    eventually(lambda: pids.exists() and pids.read_text().count("\n") == 2, 20)
    os.kill(worker.pid if killed == "worker" else start.pid, signal.SIGKILL)
    started = [int(each) for each in pids.read_text().split()]
    eventually(lambda: not any(map(psutil.pid_exists, started)), 20, what=f"end of {started}")


def _can_spawn() -> bool:
    from celery.app.defaults import NAMESPACES

    return "pool_start_method" in NAMESPACES["worker"]
