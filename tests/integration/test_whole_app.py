"""``lease_tasks = "all"`` in an app that imports nothing of leases: real workers on Redis.

The same faults are shown on plain Celery in ``test_stock_celery.py``: the visibility timeout is as
short, and kombu sweeps as often. The scenarios share nothing, so they all run at the same time and
each test reads its own.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from kombu.transport.redis import Channel

from harness import ledger as ledgers
from harness.app import gate_path
from harness.ledger import now
from harness.processes import LocalProcess
from harness.scenarios import Scenarios, playing
from harness.setup import Setup
from harness.stage import RedisStage
from harness.waiting import always, eventually
from harness.workers import QUIET_PEERS, TESTS, WorkerFleet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.brokers import RedisServer

pytestmark = pytest.mark.chaos
compat = pytest.mark.compat
#: Older kombus sweep every 100 s, whatever they are told.
SWEEPS = hasattr(Channel, "unacked_restore_throttle")

#: Seconds for which plain workers hide a message, and that a lease lasts.
VISIBILITY, EXTENSION = 3, 3.0
#: Seconds between two sweeps for expired leases, and for a busy machine.
REAPER, MARGIN = EXTENSION / 3, 5.0


class Stage(RedisStage):
    """One scenario's database, workers and ledger."""

    program = "whole"
    conf: dict[str, Any] = {  # noqa: RUF012
        "lease_tasks": "all",
        "lease_extension": EXTENSION,
        "lease_max_deliveries": 2,
        "broker_transport_options": {
            "visibility_timeout": VISIBILITY,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
    }
    extra = QUIET_PEERS

    def __init__(self, server: RedisServer, directory: Path) -> None:
        directory.mkdir()
        url = server.fresh_url()
        super().__init__(Setup(url, backend=url), server, WorkerFleet(directory))
        self.gate = str(directory / "gate")

    def starts(self, task_id: str) -> int:
        """Return how often a task was started."""
        return self.ledger.count("start", task_id)

    def wait_clean(self) -> None:
        """Return once nothing is left of any message."""
        eventually(lambda: self.is_clean() and not self.queued, 20, what="nothing is left")

    def close(self) -> None:
        self.fleet.close()
        self.redis.close()


def outlast(stage: Stage) -> dict[str, int]:
    """Run for longer than the timeout, wait behind that and for an ETA, with two workers about."""
    stage.worker(), stage.worker()
    ids = {
        "late": stage.send("late", 3.0 * VISIBILITY),
        "own": stage.send("own", 3.0 * VISIBILITY),
    }
    stage.ledger.wait("start", count=2)
    ids |= {
        "waiting late": stage.send("late"),
        "waiting early": stage.send("early"),
        "late, ETA": stage.send("late", countdown=2 * VISIBILITY),
        "early, ETA": stage.send("early", countdown=3 * VISIBILITY),
    }
    for task_id in ids.values():
        stage.ledger.wait("end", task_id, within=60)
    stage.wait_clean()
    assert stage.ledger.count("accepted", ids["own"]) == 1
    return {name: stage.starts(task_id) for name, task_id in ids.items()}


@dataclass(frozen=True, slots=True)
class Killed:
    """What came of the messages of a killed worker: starts, and seconds until the second one."""

    running_late: int
    waiting_late: int
    running_early: int
    waiting_early: int
    taken_over: float


def kill(stage: Stage) -> Killed:
    """Kill a worker with two tasks that run and two that wait; another one is there.

    By the timeout they would be back in an hour.
    """
    stage.having(broker_transport_options={"visibility_timeout": 3600})
    first = stage.worker("prefork", 2)
    early = stage.send("early", 60.0)
    late = stage.send("gated", stage.gate)
    stage.ledger.wait("start", count=2)
    waiting = [stage.send("late"), stage.send("early")]
    eventually(lambda: stage.held == 3 and not stage.queued, what="three are held")
    second = stage.fleet.launch(stage.setup, stage.options())
    gate_path(stage.gate, second.hostname).touch()
    second.wait_ready()
    first.kill_group()
    killed_at = now()
    for task_id in (late, *waiting):
        stage.ledger.wait("end", task_id, within=60)
    stage.wait_clean()
    taken_over = stage.ledger.entries("start", late)[-1].at - killed_at
    counts = [stage.starts(each) for each in (late, waiting[0], early, waiting[1])]
    return Killed(*counts, taken_over)


def go_back(stage: Stage) -> list[int]:
    """Kill the only worker with leases; one without finds what it held."""
    first = stage.worker()
    late = stage.send("gated", stage.gate)
    stage.ledger.wait("start")
    waiting = [stage.send("late"), stage.send("early")]
    eventually(lambda: stage.held == 3, what="three are held")
    first.kill_group()
    plain = stage.having(lease_tasks="decorated").fleet.launch(stage.setup, stage.options())
    gate_path(stage.gate, plain.hostname).touch()
    for task_id in (late, *waiting):
        stage.ledger.wait("end", task_id, within=60)
    assert "leases for " not in plain.log
    return [stage.starts(each) for each in (late, *waiting)]


@dataclass(frozen=True, slots=True)
class Deaths:
    """What came of tasks that kill their process: starts, states, and dead letters."""

    starts: int
    state: str
    starts_again: int
    state_again: str
    dead: int


def kill_children(stage: Stage) -> Deaths:
    """Let tasks end their process, with and without ``reject_on_worker_lost``."""
    stage.worker()
    once, again = stage.send("dies"), stage.send("dies_again")
    results = [stage.app.AsyncResult(each) for each in (once, again)]
    eventually(lambda: all(each.state == "FAILURE" for each in results), 40, what="both failed")
    stage.wait_clean()
    return Deaths(
        stage.starts(once),
        type(results[0].result).__name__,
        stage.starts(again),
        type(results[1].result).__name__,
        int(stage.redis.llen("celery.dead")),
    )


@dataclass(frozen=True, slots=True)
class Stopped:
    """What a worker that was suspended does when it goes on."""

    held_by_second: int
    starts: int
    starts_of_early: int
    ends: int


def suspend(stage: Stage) -> Stopped:
    """Suspend a worker with a task that runs and one that waits until another one has both."""
    first = stage.worker()
    late, early = stage.send("gated", stage.gate), stage.send("early")
    stage.ledger.wait("start")
    eventually(lambda: stage.held == 2, what="both are held")
    first.stop_group()
    second = stage.worker("prefork", 2)
    stage.ledger.wait("start", late, count=2, within=30)
    stage.ledger.wait("end", early, within=30)
    first.cont_group()
    first.wait_log(f"lease of task whole.gated[{late}] lost")
    gate_path(stage.gate, first.hostname).touch()
    # It has a slot again, and does nothing with what is not its own any more.
    assert always(lambda: stage.starts(early) == 1, 2.0)
    held = stage.held
    gate_path(stage.gate, second.hostname).touch()
    eventually(lambda: stage.app.AsyncResult(late).state == "SUCCESS", 20)
    stage.wait_clean()
    ends = [each for each in stage.ledger.entries("end", late) if each.worker == second.hostname]
    return Stopped(held, stage.starts(late), stage.starts(early), len(ends))


@dataclass(frozen=True, slots=True)
class Shutdown:
    """How a worker stops."""

    back_after: float
    runs_on: bool
    status: int
    left: int


def shut_down(stage: Stage) -> Shutdown:
    """Stop a worker with one running and three waiting messages."""
    stage.having(broker_transport_options={"visibility_timeout": 3600})
    worker = stage.worker()
    running = stage.send("gated", stage.gate)
    stage.ledger.wait("start")
    for task in ("early", "late", "early"):
        stage.send(task)
    eventually(lambda: stage.held == 4, what="four are held")
    worker.term()
    asked_at = now()
    eventually(lambda: stage.queued == 3, what="three are back")
    back_after = now() - asked_at
    # Beyond what a leased task of this app has by default.
    runs_on = always(lambda: worker.returncode is None and stage.held == 1, EXTENSION + 2.5)
    gate_path(stage.gate, worker.hostname).touch()
    status = worker.wait()
    assert stage.ledger.count("end", running) == 1
    return Shutdown(back_after, runs_on, status, stage.queued)


def embed(stage: Stage) -> tuple[bool, int]:
    """Run a task in a worker that a program starts in itself."""
    env = {
        **stage.setup.env(),
        "PYTHONPATH": str(TESTS),
        ledgers.ENV: str(stage.ledger.path),
    }
    command = [sys.executable, "-m", "harness.embedded_whole", str(2.0 * VISIBILITY)]
    with LocalProcess(command, stage.fleet.directory / "embedded.log", env=env) as process:
        process.start()
        assert process.wait(60) == 0, process.log
        kept = "leases for " in process.log
    stage.wait_clean()
    return kept, stage.ledger.count("start")


SCENARIOS: tuple[Callable[[Stage], object], ...] = (
    outlast,
    kill,
    kill_children,
    suspend,
    shut_down,
    embed,
    *([go_back] if SWEEPS else []),
)


@pytest.fixture(scope="module")
def scenarios(valkey: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenarios]:
    """All scenarios, some at a time."""
    directory = tmp_path_factory.mktemp("whole")
    stages = {each: Stage(valkey, directory / each.__name__) for each in SCENARIOS}
    with playing(stages, 3) as scenarios:
        yield scenarios


@compat
def test_the_app_imports_nothing_of_leases() -> None:
    """It is the premise of all others."""
    code = "import harness.app_whole, sys; sys.exit(any('celery_lease' in m for m in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(TESTS)})


@compat
def test_what_runs_and_what_waits_longer_than_the_timeout_runs_once(scenarios: Scenarios) -> None:
    """Three times as long, with two workers that sweep: plain Celery starts these 2 to 5 times."""
    seen = scenarios.outcome(outlast)
    assert set(seen.values()) == {1}, seen


@compat
def test_what_a_killed_worker_had_is_back_within_a_lease(scenarios: Scenarios) -> None:
    """But for what it had acknowledged: that ran once, at most."""
    seen = scenarios.outcome(kill)
    assert (seen.running_late, seen.waiting_late, seen.waiting_early) == (2, 1, 1)
    assert seen.running_early == 1
    assert seen.taken_over < EXTENSION + REAPER + MARGIN


@pytest.mark.skipif(not SWEEPS, reason="it would take minutes")
def test_plain_workers_find_what_a_worker_with_leases_held(scenarios: Scenarios) -> None:
    """As after a rollback: by their visibility timeout, and nothing is lost."""
    assert scenarios.outcome(go_back) == [2, 1, 1]


@compat
def test_a_dead_process_does_as_its_task_says(scenarios: Scenarios) -> None:
    """It fails, or is run again until it is a dead letter."""
    assert scenarios.outcome(kill_children) == Deaths(
        starts=1, state="WorkerLostError", starts_again=2, state_again="TooManyDeliveries", dead=1
    )


@compat
def test_a_suspended_worker_neither_settles_nor_starts_anything(scenarios: Scenarios) -> None:
    """Its run ends without a result, and its early task is acknowledged by another worker."""
    assert scenarios.outcome(suspend) == Stopped(
        held_by_second=1, starts=2, starts_of_early=1, ends=1
    )


@compat
def test_a_stopping_worker_returns_what_waits_and_ends_what_runs(scenarios: Scenarios) -> None:
    """At once; and what runs has as long as with plain Celery."""
    seen = scenarios.outcome(shut_down)
    assert seen.back_after < 1 + MARGIN
    assert (seen.runs_on, seen.status, seen.left) == (True, 0, 3)


@compat
def test_a_worker_within_a_program_has_the_parts_that_it_installs(scenarios: Scenarios) -> None:
    """Its task is longer than its lease, and runs once."""
    assert scenarios.outcome(embed) == (True, 1)
