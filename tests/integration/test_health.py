"""A worker's health endpoints, asked of a real worker."""

from __future__ import annotations

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


def test_a_worker_is_ready_until_it_is_drained_and_alive_all_the_time(
    setup: Setup, fleet: WorkerFleet
) -> None:
    """What an orchestrator's two probes see; a second worker on the same port says why it ends."""
    port = free_port()
    setup = setup.having(lease_health_port=port, lease_extension=5)
    worker = fleet.start(setup, OPTIONS)
    assert (status(port, "/health/live"), status(port, "/health/ready")) == (200, 200)
    second = fleet.launch(setup, OPTIONS)
    assert second.wait(20) == 1
    assert f"no health server on 127.0.0.1 port {port}" in second.log
    assert "Traceback" not in second.log
    setup.app().control.broadcast("lease_drain", destination=[worker.hostname])
    eventually(lambda: status(port, "/health/ready") == 503, 10)
    assert status(port, "/health/live") == 200
    worker.term()
    assert worker.wait(20) == 0
