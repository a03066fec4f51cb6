"""The project's processes serve as pytest-celery's nodes, with no container engine at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.app import long

if TYPE_CHECKING:
    from pytest_celery import CeleryTestSetup

pytest.importorskip("pytest_celery")


@pytest.fixture(autouse=True)
def no_container_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks for a container engine gets an address where none is."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")


def test_a_setup_of_local_processes_is_ready_and_runs_a_task(celery_setup: CeleryTestSetup) -> None:
    """All three nodes are ready, control reaches the worker and a task's result comes back."""
    assert celery_setup.ready(ping=False, control=True, docker=True)
    result = celery_setup.app.send_task(long.name, (0.0,))
    assert result.get(timeout=20) == 0.0


def test_a_worker_node_can_be_killed_and_restarted(celery_setup: CeleryTestSetup) -> None:
    """The node's own kill and restart act on the process, and its log shows the second start."""
    worker = celery_setup.worker
    worker.kill()
    assert worker.container.status == "exited"
    worker.restart()
    worker.wait_for_log("ready.")
    assert celery_setup.app.send_task(long.name, (0.0,)).get(timeout=20) == 0.0
