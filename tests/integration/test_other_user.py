"""A worker that changed its user, or that a service manager hardens: its tasks run as ever."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from celery import VERSION

from harness.workers import QUIET_PEERS, WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.brokers import RedisServer
    from harness.setup import Setup
    from harness.workers import Worker

pytestmark = pytest.mark.compat

METHODS = ["fork", "spawn"] if VERSION >= (5, 7) else ["fork"]

#: What a service manager does before it starts a worker as root: it hides other processes
#: (``ProtectProc=invisible``), and lends a directory for temporary files (``PrivateTmp``). Where
#: Python is root's alone, a copy of it is put into its place.
HARDEN = """
mount -t proc -o hidepid=2 proc /proc
if ! setpriv --reuid nobody --clear-groups test -x "$1"; then
    python=$(mktemp -d) && mount --bind "$2" $python
    mount -t tmpfs -o mode=755 tmpfs "/$(echo "$2" | cut -d/ -f2)" && mkdir -p "$2"
    mount --bind $python "$2"
fi
shift 2
exec setpriv --no-new-privs "$@"
"""
PREFIX = ("unshare", "--mount", "sh", "-ec", HARDEN, "harden")


def options(module: str = "harness.app_hardened", **env: str) -> WorkerOptions:
    """Return a worker's options: as root it changes its user, and else it hides its files."""
    if os.getuid():
        return WorkerOptions(module=module, concurrency=2, env=env)
    return WorkerOptions(
        module=module,
        concurrency=2,
        prefix=(*PREFIX, os.path.realpath(sys.executable), sys.base_prefix),
        extra=(*QUIET_PEERS, "--uid", "nobody", "--gid", "nogroup"),
        env=env,
    )


def descriptors(pid: int) -> list[Path]:
    """Return what a process has open, as links."""
    return list(Path(f"/proc/{pid}/fd").iterdir())


@pytest.fixture
def public_fleet() -> Iterator[WorkerFleet]:
    """Workers in a directory that every user may use."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        fleet = WorkerFleet(Path(directory))
        yield fleet
        fleet.close()


class Stage:
    """One worker of another user."""

    def __init__(self, setup: Setup, fleet: WorkerFleet, server: RedisServer, **conf: Any) -> None:
        self.setup = setup.having(worker_proc_alive_timeout=60, **conf)  # spawning takes its time
        self.fleet, self.ledger = fleet, fleet.ledger
        self.app = self.setup.app()
        self.redis = server.client(self.setup.database)

    def worker(self, **more: str) -> Worker:
        env = {"TMPDIR": str(self.fleet.directory), "PYTHONDONTWRITEBYTECODE": "1"}
        return self.fleet.start(self.setup, options(**env, **more))

    def send(self, name: str, *args: Any, **headers: Any) -> str:
        name = name if "." in name else f"any.{name}"
        return str(self.app.send_task(name, args, headers=headers).id)

    def queued(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.redis.lrange("celery", 0, -1)]

    def runs(self, task_id: str) -> list[str]:
        return [entry.event for entry in self.ledger.entries(task_id=task_id)]


@pytest.fixture
def stage(setup: Setup, public_fleet: WorkerFleet, valkey: RedisServer) -> Stage:
    """An empty database."""
    return Stage(setup, public_fleet, valkey)


@pytest.mark.parametrize("method", METHODS)
def test_tasks_run_under_leases_from_the_first_to_the_last(
    setup: Setup, public_fleet: WorkerFleet, valkey: RedisServer, method: str
) -> None:
    """Also in a process that replaced another."""
    stage = Stage(setup, public_fleet, valkey, worker_pool_start_method=method)
    worker = stage.worker()
    lease = {"lease_extension": 60}  # a spawned process takes its time before its first task
    first = [stage.send("work", 1, lease=lease) for _ in range(2)]
    for each in first:
        stage.ledger.wait("end", each, within=60)
    dying = stage.send("silent", 60, lease=lease)
    os.kill(stage.ledger.wait("start", dying, within=60)[0].pid, signal.SIGKILL)
    stage.ledger.wait("end", dying, within=60)
    last = [stage.send("work", 0.2, lease=lease) for _ in range(4)]
    for each in last:
        stage.ledger.wait("end", each, within=60)
    assert all(stage.runs(each) == ["start", "end"] for each in (*first, *last))
    assert stage.runs(dying) == ["start", "start", "end"]
    worker.term()
    assert worker.wait(60) == 0
    assert "cannot reach" not in worker.log


def test_no_file_is_left_behind(stage: Stage) -> None:
    """Whatever ends the worker: neither in its directory for such files, nor of those it opened."""
    worker = stage.worker()
    stage.ledger.wait("end", stage.send("work", 0.1))
    opened = [] if os.getuid() else [str(fd.readlink()) for fd in descriptors(worker.pid)]
    worker.kill()
    worker.wait()
    assert not [each for each in stage.fleet.directory.iterdir() if "celery-lease" in each.name]
    assert not [each for each in opened if "celery-lease" in each and Path(each).exists()]


def test_a_stuck_task_is_ended_and_runs_again(stage: Stage) -> None:
    """The watchdog does not take a process for gone whose files it may not read."""
    worker = stage.worker()
    stuck = stage.send("silent", 60)
    stage.ledger.wait("end", stuck, within=60)
    assert stage.runs(stuck) == ["start", "start", "end"]
    assert "has not beaten for" in worker.log


def test_daemon_mode_holds_the_lease_of_a_silent_task(stage: Stage) -> None:
    """The keeper does not take a process for dead whose files it may not read."""
    stage.worker()
    silent = stage.send("silent", 9, lease={"lease_mode": "daemon"})
    stage.ledger.wait("end", silent, within=60)
    assert stage.runs(silent) == ["start", "end"]


def test_the_worker_has_changed_its_user(stage: Stage) -> None:
    """So that the tests above show what they say; without the right to do so it hides its files."""
    stage.worker()
    ended = stage.send("work", 0.1)
    pid = stage.ledger.wait("end", ended)[0].pid
    if os.getuid():
        with pytest.raises((FileNotFoundError, PermissionError)):  # the former with hidepid
            descriptors(pid)
    else:
        assert psutil.Process(pid).uids().real != 0


if "spawn" in METHODS:

    @pytest.mark.parametrize(
        ("module", "task"),
        [("app_hardened", "any.work"), ("app_whole", "whole.late"), ("app_whole", "whole.early")],
    )
    def test_what_a_task_process_cannot_read_is_no_loss_of_its_tasks(
        setup: Setup, public_fleet: WorkerFleet, valkey: RedisServer, module: str, task: str
    ) -> None:
        """One error; the worker stops, and a sound one runs them, though no loss is allowed."""
        conf = {
            "worker_pool_start_method": "spawn",
            "lease_max_deliveries": 1,
            "lease_tasks": "all",
        }
        stage = Stage(setup, public_fleet, valkey, **conf)
        module = f"harness.{module}"
        worker = stage.worker(module=module)
        (board,) = public_fleet.directory.glob("celery-lease-board-*")
        board.unlink()
        lease = {"lease_extension": 60}
        sent = [stage.send(task, 0.1, lease=lease) for _ in range(4)]
        assert worker.wait(60) == 1
        assert worker.log.count("cannot reach the worker's memory") == 1
        assert stage.ledger.entries() == []
        assert sorted(each["headers"]["id"] for each in stage.queued()) == sorted(sent)
        assert stage.redis.keys("celery.dead*") == []
        stage.worker(module=module)
        stage.ledger.wait("end", count=4, within=60)
