"""A worker's health endpoints, asked of a real worker."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from harness.waiting import eventually, free_port
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from harness.setup import Setup
    from harness.workers import WorkerFleet

OPTIONS = WorkerOptions(module="harness.app_shutdown")


def status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code


def probed(port: int, *options: str) -> tuple[int, str]:
    """Ask as a probe does that runs a command; return its exit code and what it said."""
    command = [sys.executable, "-m", "celery_lease.probe", "--port", str(port), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_a_worker_is_ready_until_it_is_drained_and_alive_all_the_time(
    setup: Setup, fleet: WorkerFleet
) -> None:
    """What an orchestrator's two probes see; a second worker on the same port works without
    health and metrics, and says so.
    """
    port = free_port()
    setup = setup.having(lease_health_port=port, lease_extension=5)
    worker = fleet.start(setup, OPTIONS)
    assert (status(port, "/health/live"), status(port, "/health/ready")) == (200, 200)
    second = fleet.launch(setup, OPTIONS).wait_ready(60)
    assert f"WARNING/MainProcess] no health server on 127.0.0.1 port {port}" in second.log
    assert "Traceback" not in second.log
    second.term()
    assert second.wait(30) == 0
    assert probed(port, "--ready")[0] == 0
    setup.app().control.broadcast("lease_drain", destination=[worker.hostname])
    eventually(lambda: status(port, "/health/ready") == 503, 10)
    assert status(port, "/health/live") == 200
    assert probed(port, "--live")[0] == 0
    code, said = probed(port, "--ready")
    assert code == 1
    assert said.startswith("not ready: ")
    assert '"stopping": true' in said
    worker.term()
    assert worker.wait(20) == 0
    code, said = probed(port, "--live")
    assert code == 1
    assert said.startswith(f"not live: no answer from 127.0.0.1 port {port}: ")
