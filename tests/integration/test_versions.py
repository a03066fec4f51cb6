"""One deploy has workers of two versions for a while; and leases can be taken out of an app again.

The other version is that of the last tag, or of the commit that was the last before there were
tags, taken out of the repository's history.
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from harness.app_versions import NO_LEASES
from harness.waiting import always, eventually
from harness.workers import TESTS, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.setup import Setup
    from harness.workers import Worker, WorkerFleet

ROOT = TESTS.parent
MODULE = "harness.app_versions"
LEASE = {"lease_extension": 4, "lease_reaper_interval": 1}


def git(*arguments: str) -> bytes:
    """Return what git prints, nothing if it fails."""
    command = ("git", "-C", str(ROOT), *arguments)
    try:
        return subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return b""


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the last version."""
    name = (TESTS / "packaging" / "last_version").read_text().split()[0]
    tag = git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^").decode().strip()
    archive = git("archive", tag or name, "src")
    if not archive:
        pytest.skip(f"the last version ({tag or name}) is not in a git history here")
    directory = tmp_path_factory.mktemp("other")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(directory, filter="data")
    return directory / "src"


@dataclass(frozen=True)
class Version:
    """One version's worker, client and command line."""

    setup: Setup
    source: Path

    def env(self) -> dict[str, str]:
        """Return what makes a process of this version."""
        return {"PYTHONPATH": os.pathsep.join([str(self.source), str(TESTS)])}

    def worker(self, fleet: WorkerFleet) -> Worker:
        """Start a worker; its pool has one place, so that what follows is reserved."""
        return fleet.start(self.setup, WorkerOptions(module=MODULE, env=self.env()))

    def send(self, *calls: str) -> None:
        """Send tasks of the app from a process of this version."""
        program = [f"from {MODULE} import *", *calls, "import celery_lease; print(celery_lease)"]
        printed = self._run(sys.executable, "-c", "\n".join(program))
        assert f"{self.source}/celery_lease" in printed

    def command(self, *arguments: str) -> str:
        """Return what ``celery lease`` prints."""
        return self._run(sys.executable, "-m", "celery", "-A", MODULE, "lease", *arguments)

    def _run(self, *command: str) -> str:
        env = {**os.environ, **self.setup.env(), **self.env()}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def database(setup: Setup) -> Iterator[redis.Redis]:
    """The broker's database, as it is."""
    with redis.Redis.from_url(setup.broker, decode_responses=True, socket_timeout=5) as client:
        yield client


@pytest.fixture(params=["old before new", "new before old"])
def pair(request: pytest.FixtureRequest, other: Path, setup: Setup) -> list[Version]:
    """Both versions, in the order in which they get to work."""
    sources = [other, ROOT / "src"]
    if request.param == "new before old":
        sources.reverse()
    return [Version(setup.having(**LEASE), source) for source in sources]


def test_two_versions_share_messages_leases_checkpoints_and_dead_letters(
    pair: list[Version], fleet: WorkerFleet, database: redis.Redis, tmp_path: Path
) -> None:
    """What one sent, holds, saved and gave up is the other's to leave alone, and to go on with."""
    gate, ledger = tmp_path / "gate", fleet.ledger
    first, second = pair
    first.send(
        "kills.apply_async(task_id='kills')",
        f"checkpoints.holders.apply_async(({str(gate)!r},), task_id='long', lease_extension=3)",
        *(f"checkpoints.items.apply_async((2, -1), task_id='short {n}')" for n in range(2)),
    )
    before = first.worker(fleet)
    ledger.wait("saved", "long", within=30)
    after = second.worker(fleet)
    # It sweeps, and has nothing to do: what the first one holds is its own.
    assert always(lambda: ledger.count("start", "long") == 1, during=5, every=0.2)
    assert not [entry for entry in ledger.entries("start") if entry.worker == after.hostname]
    before.kill()
    (_, again) = ledger.wait("start", "long", count=2, within=30)
    assert (again.worker, again.facts["restored"]) == (after.hostname, f"{before.hostname} early")
    Path(f"{gate}.{after.hostname}").touch()
    Path(f"{gate}.end").touch()
    for number in range(2):
        ledger.wait("end", f"short {number}")
    assert [ledger.count("start", f"short {number}") for number in range(2)] == [1, 1]
    # The killed worker may have held it behind the long task: then it comes last.
    eventually(lambda: database.llen("celery.dead") == 1, within=30)
    assert "kills" in second.command("dead", "list")
    assert re.search("^1 messages? (replayed|sent back)$", second.command("dead", "retry", "kills"))
    ledger.wait("start", "kills", count=2, within=30)
    eventually(lambda: database.llen("celery.dead") == 1, within=30)
    assert "kills" in first.command("dead", "list")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=lambda end: end.name)
def test_a_worker_without_leases_takes_over_what_leases_left(
    end: signal.Signals,
    setup: Setup,
    fleet: WorkerFleet,
    database: redis.Redis,
    tmp_path: Path,
) -> None:
    """Running, reserved, and waiting for its ETA: all runs on plain Celery, and is acknowledged."""
    from harness.app_versions import wait

    gate, ledger = tmp_path / "gate", fleet.ledger
    sweeping = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    setup = setup.having(broker_transport_options={"visibility_timeout": 3, **sweeping})
    leased = fleet.start(setup.having(**LEASE), WorkerOptions(module=MODULE))
    app = setup.app()
    options: dict[str, Any] = {"lease_extension": 3}
    for number in range(3):
        countdown = 1 if number == 2 else None
        app.send_task(
            wait.name,
            (str(gate),),
            task_id=str(number),
            countdown=countdown,
            headers={"lease": options},
        )
    ledger.wait("start", "0")
    eventually(lambda: database.hlen("unacked") == 3)
    leased.send(end)
    leased.wait(within=60)
    gate.touch()
    env = {NO_LEASES: "1"}
    fleet.start(setup, WorkerOptions(module=MODULE, pool="solo", env=env))
    for number in range(3):
        ledger.wait("end", str(number), within=60)
    eventually(lambda: database.hlen("unacked") == database.zcard("unacked_index") == 0)
    left = {each for each in database.scan_iter("unacked.*") if database.ttl(each) == -1}
    assert left <= {"unacked.leases", "unacked.claims", "unacked.token", "unacked.bell"}
