"""``celery lease status``, and what else looks at workers: a dead broker, none, 1,000 leases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from celery_lease.cli import broker
from harness.lease_desk import Bench
from harness.setup import Setup
from harness.shell import Shell
from harness.waiting import eventually
from harness.workers import TESTS, Worker, WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.brokers import RedisServer

MODULE = "harness.app_views"
MANY = 1000
DEAD = "redis://127.0.0.1:1/0"


@dataclass
class Crowd:
    """A worker that holds 1,000 leases; one of its tasks runs."""

    setup: Setup
    worker: Worker
    shell: Shell
    running: str
    waiting: list[str]

    def celery(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a ``celery -A ...`` command to its end, as from a shell with a pipe behind."""
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, "-m", "celery", "-A", MODULE, *arguments],
            env={**os.environ, **self.setup.env(), "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="module")
def crowd(valkey: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """The worker of all tests of this module that need one."""
    url = valkey.fresh_url()
    setup = Setup(url, backend=url).having(
        lease_extension=60, worker_prefetch_multiplier=MANY, lease_shutdown_timeout=1
    )
    fleet = WorkerFleet(tmp_path_factory.mktemp("crowd"))
    app = setup.app()
    running = str(app.send_task("views.work", (300,)).id)
    with app.connection_for_write() as connection:
        waiting = [
            str(app.send_task("views.work", (0,), connection=connection).id)
            for _ in range(MANY - 1)
        ]
    worker = fleet.start(setup, WorkerOptions(module=MODULE))
    redis = valkey.client(setup.database)
    eventually(lambda: redis.zcard("unacked.leases") == MANY, 30)
    fleet.ledger.wait("start", running)
    yield Crowd(setup, worker, Shell(app), running, waiting)
    fleet.close()


@pytest.fixture
def nobody(setup: Setup) -> Iterator[Shell]:
    """A shell on a broker without a worker."""
    with setup.app() as app:
        yield Shell(app)


# A thousand leases.


def test_status_shows_what_a_worker_holds(crowd: Crowd) -> None:
    """Every lease once, the running one with its progress, in little more than the question."""
    began = time.monotonic()
    said = json.loads(crowd.shell("status", "--json", "-d", crowd.worker.hostname, "-t", "20"))
    assert time.monotonic() - began < 10
    assert (said["source"], said["workers"]) == ("workers", [crowd.worker.hostname])
    assert {row["id"] for row in said["leases"]} == {crowd.running, *crowd.waiting}
    (row,) = (row for row in said["leases"] if row["id"] == crowd.running)
    assert (row["task"], row["state"], row["hostname"]) == (
        "views.work",
        "running",
        crowd.worker.hostname,
    )
    assert row["progress"]["total"] == 300
    assert row["progress"]["note"] == "working"
    assert 0 < row["remaining"] <= 60
    assert row["beat_age"] < 10


def test_status_in_a_pipe_is_plain_text(crowd: Crowd) -> None:
    """A line a lease, whole, sorted as wished, without colours."""
    done = crowd.celery("lease", "status", "--sort", "progress", "-d", crowd.worker.hostname)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:4] == ["TASK", "ID", "WORKER", "STATE"]
    assert lines[1].split()[:4] == ["views.work", crowd.running, crowd.worker.hostname, "running"]
    assert "/300 (" in lines[1]
    assert len(lines) == len(crowd.waiting) + 3
    assert lines[-1] == f"{len(crowd.waiting) + 1} leases, 1 workers"
    assert "\x1b" not in done.stdout


def test_celerys_own_inspect_knows_leases(crowd: Crowd) -> None:
    """``celery inspect leases``, by anybody who knows Celery's tools; all, or by id."""
    listing = crowd.celery("inspect", "--list")
    assert "leases" in listing.stdout, listing.stderr
    inspect = crowd.shell.app.control.inspect(destination=[crowd.worker.hostname], timeout=20)
    (row,) = inspect._request("leases", task_id=[crowd.waiting[7]])[crowd.worker.hostname]
    assert (row["id"], row["state"], row["deliveries"]) == (crowd.waiting[7], "reserved", 1)


def test_onlookers_do_not_hold_up_the_keeper(crowd: Crowd) -> None:
    """Asked again and again for 1,000 leases, the worker extends them in time."""
    inspect = crowd.shell.app.control.inspect(destination=[crowd.worker.hostname], timeout=20)
    for _ in range(10):
        rows = inspect._request("leases")[crowd.worker.hostname]
        assert min(row["remaining"] for row in rows) > 30
    assert "Traceback" not in crowd.worker.log


def test_one_of_many_is_cancelled_by_its_id(crowd: Crowd) -> None:
    """A waiting one is gone at once; the others stay."""
    one, other = crowd.waiting[3], crowd.waiting[4]
    said = crowd.shell("cancel", one, "-t", "5")
    assert said.strip() == (
        f"views.work[{one}] on {crowd.worker.hostname}: it waited there, and is revoked"
    )
    inspect = crowd.shell.app.control.inspect(destination=[crowd.worker.hostname], timeout=20)
    rows = inspect._request("leases", task_id=[one, other])[crowd.worker.hostname]
    assert [row["id"] for row in rows] == [other]
    del crowd.waiting[3]


# Nobody there.


@pytest.mark.parametrize("command", [["status"], ["cancel", "x"]], ids=" ".join)
def test_a_broker_that_is_away_is_told_in_one_line(nobody: Shell, command: list[str]) -> None:
    """Which broker, why, what to check; no traceback, and not zero."""
    nobody.app.conf.broker_url = DEAD
    done = nobody.result(*command)
    assert done.exit_code == 69
    (line,) = done.output.splitlines()
    assert line.startswith("Error: broker redis://")
    assert "127.0.0.1:1/0 does not answer: " in line
    assert "Connection refused. Is it running, and is broker_url right?" in line


def test_a_broker_that_is_silent_is_away_too(
    own_valkey: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the connection and says nothing; nobody waits for ever."""
    monkeypatch.setattr(broker, "PATIENCE", 0.5)
    with Setup(own_valkey.url()).app() as app:
        own_valkey.stop()
        try:
            assert "does not answer" in Shell(app).fails("status")
        finally:
            own_valkey.cont()


def test_no_worker_is_told_with_what_to_check(nobody: Shell) -> None:
    """And that it is not the broker."""
    done = nobody.result("status", "-t", "0.3")
    assert done.exit_code == 69
    assert "no worker replied within 0.3 s. Is one running on this broker" in done.stderr
    assert nobody.result("cancel", "x", "-t", "0.3").exit_code == 69
    done = nobody.result("status", "-t", "0.3", "-d", "w1@h,w2@h")
    assert done.stderr.splitlines() == [f"w{n}@h: no reply within 0.3 s" for n in (1, 2)]


def test_without_workers_the_brokers_own_record_is_shown(setup: Setup, nobody: Shell) -> None:
    """Who took what, and how long that lasts; also in JSON."""
    bench = Bench(setup.broker)
    bench.publish([["t1"], {}, {}], headers={"id": "t1", "task": "proj.work"})
    bench.desk(seconds=90).receive()
    done = nobody.result("status", "-t", "0.3")
    assert done.exit_code == 69
    assert "1 leases on the broker's record" in done.stdout
    said = json.loads(nobody.result("status", "--json", "-t", "0.3").stdout)
    (row,) = said["leases"]
    assert (said["source"], said["workers"], row["state"]) == ("broker", [], "held")
    assert 60 < row["remaining"] <= 90
    bench.close()
