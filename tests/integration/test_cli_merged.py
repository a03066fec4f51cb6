"""``celery lease status`` and others beside workers that die, share a name, or cannot be asked."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from celery_lease.cli.sources import sources
from celery_lease.view import Collector
from harness.lease_desk import Bench
from harness.places import place_of
from harness.shell import Shell
from harness.stage import RedisStage
from harness.waiting import eventually
from harness.workers import WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.brokers import RedisServer
    from harness.setup import Setup


class Stage(RedisStage):
    """Workers with one process each, whose leases outlive the test."""

    program = "views"
    conf: ClassVar[dict[str, Any]] = {
        "lease_extension": 30,
        "lease_reaper_interval": 5,
        "worker_prefetch_multiplier": 1,
    }

    @property
    def shell(self) -> Shell:
        return Shell(self.app)

    def leases(self, *options: str) -> dict[str, dict[str, Any]]:
        """Return what ``status`` says, by task id."""
        seconds = "20" if options else "1"  # named workers are waited for, and no longer
        done = self.shell.result("status", "--json", "-t", seconds, *options)
        said = json.loads(done.stdout)
        return {row["id"]: row for row in said["leases"]}

    def running(self) -> str:
        """Send a task and return its id when it runs."""
        task = self.send("work", 300)
        self.ledger.wait("start", task)
        return task


@pytest.fixture
def stage(
    setup: Setup, valkey: RedisServer, fleet: WorkerFleet, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    """A stage whose app knows the settings of its workers."""
    # Shared tasks of other tests' modules have shorter leases.
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
    stage = Stage(setup, valkey, fleet)
    yield stage
    stage.app.close()


def test_a_lease_of_a_dead_worker_is_shown_as_orphaned(stage: Stage) -> None:
    """Beside those of one that lives; with the time until it runs again, everywhere.

    Failed with: the row of the dead worker is missing.
    """
    dying = stage.worker()
    orphan = stage.running()
    living = stage.worker()
    other = stage.running()
    eventually(lambda: len(stage.leases()) == 2, 20)
    dying.kill_group()
    rows = eventually(lambda: (found := stage.leases())[other]["state"] == "running" and found)
    assert rows[orphan]["state"] == "orphaned"
    assert rows[orphan]["hostname"] == dying.hostname
    assert 0 < rows[orphan]["runs_again_in"] <= 35
    text = stage.shell.until("\n2 leases, 1 worker\n", "status", "-t", "1")
    assert "runs again in about " in text
    assert text.endswith("\n2 leases, 1 worker\n")
    assert "orphaned" in stage.shell("top", "--once", "-i", "1")
    assert f"is held by {dying.hostname}:" in stage.shell("explain", orphan, "-t", "1")
    assert list(stage.leases("-d", living.hostname)) == [other]


def test_a_lease_of_the_only_worker_is_orphaned_when_that_dies(stage: Stage) -> None:
    """Nobody replied, and the broker's record has its name."""
    worker = stage.worker()
    task = stage.running()
    worker.kill_group()
    assert stage.leases()[task]["state"] == "orphaned"


def both(stage: Stage, *where: str) -> tuple[dict[str, Any], str] | None:
    """Return what ``status`` says, and warns of, once two workers replied in time."""
    done = stage.shell.result("status", "--json", "-t", "2", *where)
    said = json.loads(done.stdout)
    return (said, done.stderr) if len(said["workers"]) == 2 else None


def test_workers_of_one_name_are_both_shown_and_warned_of(stage: Stage, tmp_path: Path) -> None:
    """By their unique identities; named or not.

    Failed with: one worker and one lease.
    """
    options = WorkerOptions(module=stage.module)
    (tmp_path / "twin").mkdir()
    twins = [stage.fleet, WorkerFleet(tmp_path / "twin")]
    tasks = set()
    try:
        for fleet in twins:
            worker = fleet.start(stage.setup, options)
            tasks.add(stage.send("work", 300))
            eventually(lambda: stage.held == len(tasks), 20, what="each has one")
        for where in ([], ["-d", worker.hostname]):
            said, warned = eventually(lambda where=where: both(stage, *where), 60)
            assert {row["id"] for row in said["leases"]} == tasks
            assert {row["state"] for row in said["leases"]} == {"running"}
            assert said["workers"] == sorted(row["worker"] for row in said["leases"])
            assert f"warning: 2 workers are named {worker.hostname}: " in warned
        named = f"2 workers are named {worker.hostname}"
        eventually(lambda: named in stage.shell("doctor", "-t", "2"), 60)
        eventually(lambda: stage.shell("drain", "-t", "2").count(": draining") == 2, 60)
    finally:
        twins[1].close()


def test_of_workers_of_one_name_the_right_one_is_named(stage: Stage, tmp_path: Path) -> None:
    """The one that runs the task, and the one that does not reply: a solo worker cannot drain."""
    options = WorkerOptions(module=stage.module)
    (tmp_path / "twin").mkdir()
    twin = WorkerFleet(tmp_path / "twin")
    tasks = []
    try:
        for fleet, pool in ((stage.fleet, "prefork"), (twin, "solo")):
            worker = fleet.start(stage.setup, replace(options, pool=pool))
            tasks.append(stage.send("work", 300))
            eventually(lambda: stage.held == len(tasks), 20, what="each has one")
        said, _ = eventually(lambda: both(stage), 60)
        holders = {row["id"]: row["worker"] for row in said["leases"]}
        for task, holder in holders.items():
            done = stage.shell.result("stack", task, "-t", "5")
            assert f"[{task}] on {holder}, process" in done.stdout, done.stderr
        prefork, solo = (holders[task] for task in tasks)
        for where in ([], ["-d", worker.hostname]):
            done = stage.shell.result("drain", "-t", "3", *where)
            assert (done.exit_code, done.stdout) == (1, f"{prefork}: draining\n"), done.stderr
            assert f"{solo}: no reply within 3 s" in done.stderr
    finally:
        twin.close()


def test_a_trace_begins_with_what_runs(stage: Stage) -> None:
    """A task that began before, and of which nothing happens meanwhile.

    Failed with: no event of any lease within 1 s.
    """
    worker = stage.worker()
    task = stage.running()
    said = stage.shell("trace", "-s", "1")
    assert f"views.work[{task}]" in said
    assert f"  {worker.hostname} " in said
    assert " held, token " in said


def test_on_rabbitmq_what_a_silent_worker_said_is_remembered(
    request: pytest.FixtureRequest, fleet: WorkerFleet
) -> None:
    """By whoever goes on looking; and what nobody can know is said."""
    place = place_of("rabbitmq classic", request, lease_extension=30)
    options = WorkerOptions(module="harness.app_views", queues=place.queue)
    worker = fleet.start(place.setup, options)
    app, collector = place.app(), Collector()
    task = str(app.send_task("views.work", (300,)).id)
    fleet.ledger.wait("start", task)
    with sources(app) as found:
        collector.collect(found, time.monotonic, timeout=2)
        assert [row.state for row in collector.view(time.monotonic()).rows] == ["running"]
        worker.stop()
        collector.collect(found, time.monotonic, timeout=1)
        view = collector.view(time.monotonic())
        worker.cont()
    assert [(row.id, row.state, row.hostname) for row in view.rows] == [
        (task, "silent", worker.hostname)
    ]
    assert "no reply from" in view.headline()
    done = Shell(app).result("status", "-t", "2")
    assert "RabbitMQ does not say which messages are held" in done.stderr


def test_on_pgmq_the_databases_record_is_shown(request: pytest.FixtureRequest) -> None:
    """Workers cannot be asked there: what is held, until when, and what waits.

    Failed with: workers on pgmq cannot be asked.
    """
    place = place_of("pgmq", request)
    bench = Bench(place.setup.broker, place.setup.conf["broker_transport_options"])
    with place.app() as app, bench.desk(place.queue, seconds=90) as desk:
        app.send_task("proj.work", task_id="t1")
        desk.receive()
        app.send_task("proj.work", task_id="t2")
        shell = Shell(app)
        done = shell.result("status", "--json")
        (row,) = json.loads(done.stdout)["leases"]
        assert (done.exit_code, row["id"], row["task"], row["state"]) == (
            0,
            "t1",
            "proj.work",
            "held",
        )
        assert 60 < row["remaining"] <= 90
        assert "workers on pgmq cannot be asked" in done.stderr
        assert "t1" in shell("top", "--once")
        assert "proj.work[t1] is held by a worker that the broker does" in shell("explain", "t1")
        assert "proj.work[t2] waits in queue celery, 0 before it" in shell("explain", "t2")
    bench.close()
