"""Every pool: a lease is kept by beats, lost without them, and held while a message waits.

One worker of each pool runs the same work at the same time, each on a database of its own; every
test reads one fact of one run. Leases last 3 s.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from celery import VERSION

from harness.relay_stage import EXTENSION, RelayStage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.brokers import RedisServer

pytestmark = pytest.mark.compat

POOLS = ["prefork", "threads", "gevent", "eventlet", "solo"]
if VERSION >= (5, 7):
    POOLS.insert(1, "spawn")
#: Headers of a call in a mode other than its task's.
DAEMON, OBSERVE = ({"lease": {"lease_mode": mode}} for mode in ("daemon", "observe"))


@dataclass
class Run:
    """What one worker did."""

    stage: RelayStage
    exit_status: int
    ids: dict[str, list[str]] = field(default_factory=dict)

    def of(self, name: str) -> list[list[tuple[str, int]]]:
        """Return what happened to each task of a name."""
        return [self.stage.runs(task_id) for task_id in self.ids[name]]


def play(stage: RelayStage, pool: str) -> Run:
    """Let one worker do everything, and end it."""
    ids: dict[str, list[str]] = {
        "eta": [stage.send("short", countdown=2 * EXTENSION)],
        "limited": [stage.send("limited") for _ in range(2)],
        "beats": [stage.send("beats", 2 * EXTENSION)],
        "crowd": [stage.send("crowd", 1.5 * EXTENSION)],
        "stuck": [stage.send("stuck", 1.5 * EXTENSION)],
        "silent": [stage.send("silent", 1.5 * EXTENSION)],
        "daemon": [stage.send("silent", 1.5 * EXTENSION, headers=DAEMON)],
        "observe": [stage.send("silent", 1.5 * EXTENSION, headers=OBSERVE)],
        "waiting": [stage.send("short") for _ in range(3)],
        "covered": [stage.send("covered_late", 1.2 * EXTENSION)],
        "covered early": [stage.send("covered_early") for _ in range(3)],
        "covered eta": [stage.send("covered_early", countdown=2 * EXTENSION)],
    }
    worker = stage.start("prefork" if pool == "spawn" else pool, 1 if pool == "solo" else 2)
    for task_id in (each for name in ids for each in ids[name]):
        stage.wait("end", task_id, within=90)
    stage.wait_settled(15)
    worker.term()
    return Run(stage, worker.wait(), ids)


def stage_for(pool: str, server: RedisServer, root: Any) -> RelayStage:
    """Return the stage of a pool; spawning is a setting of the prefork pool."""
    # The watchdog would end silent tasks, or a solo worker, before they find out by themselves.
    conf: dict[str, Any] = {"lease_watchdog_threshold": 300, "lease_tasks": ["relay.covered*"]}
    if pool == "spawn":
        conf["worker_pool_start_method"] = "spawn"
    return RelayStage(server, root / pool, **conf)


@pytest.fixture(scope="module")
def runs(valkey: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """All pools at work at the same time; a failed one raises in the tests that read it."""
    root = tmp_path_factory.mktemp("pools")
    stages = {pool: stage_for(pool, valkey, root) for pool in POOLS}
    with ThreadPoolExecutor(len(POOLS)) as threads:
        yield {pool: threads.submit(play, stage, pool) for pool, stage in stages.items()}
    for stage in stages.values():
        stage.close()


@pytest.fixture(params=POOLS)
def run(request: pytest.FixtureRequest, runs: dict[str, Any]) -> Run:
    """One pool's run, done."""
    done: Run = runs[request.param].result()
    return done


@pytest.mark.parametrize("task", ["beats", "crowd"])
def test_a_task_longer_than_its_lease_runs_once_if_it_beats(run: Run, task: str) -> None:
    """I2: beats from the task or from four threads of it; one run, one delivery."""
    assert run.of(task) == [[("start", 1), ("end", 1)]]


def test_a_task_that_stops_beating_is_told_and_runs_again(run: Run) -> None:
    """I3: ``LeaseLost`` at the next beat; the second delivery does the work."""
    events = run.of("stuck")[0]
    assert sorted(events) == [("end", 2), ("lost", 1), ("start", 1), ("start", 2)]
    assert events[0] == ("start", 1)


def test_what_returns_after_its_lease_is_acknowledged_by_the_next_delivery_only(run: Run) -> None:
    """I4: both runs of the task ended; nothing of it is left at the broker and none was lost."""
    assert sorted(run.of("silent")[0]) == [("end", 1), ("end", 2), ("start", 1), ("start", 2)]


@pytest.mark.parametrize("mode", ["daemon", "observe"])
def test_a_silent_task_whose_life_is_proof_enough_runs_once(run: Run, mode: str) -> None:
    """Longer than its lease, in the modes that ask for no beat."""
    assert run.of(mode) == [[("start", 1), ("end", 1)]]


@pytest.mark.parametrize("kind", ["waiting", "eta", "limited"])
def test_waiting_longer_than_a_lease_is_no_loss(run: Run, kind: str) -> None:
    """Prefetched behind long tasks, sent with a countdown, or rate limited: one delivery each."""
    assert run.of(kind) == [[("start", 1), ("end", 1)]] * len(run.ids[kind])


@pytest.mark.parametrize("kind", ["covered", "covered early", "covered eta"])
def test_an_undecorated_task_of_lease_tasks_runs_once(run: Run, kind: str) -> None:
    """Under its lease if it is acknowledged late; else it has held one while it waited."""
    assert run.of(kind) == [[("start", 1), ("end", 1)]] * len(run.ids[kind])
    starts = [run.stage.ledger.entries("start", task_id)[0] for task_id in run.ids[kind]]
    assert [each.facts["leased"] for each in starts] == [kind == "covered"] * len(starts)


def test_the_worker_ends_in_order(run: Run) -> None:
    """No keeper or reaper holds a worker up that was asked to stop."""
    assert run.exit_status == 0
    assert "Traceback" not in run.stage.fleet.workers[0].log
