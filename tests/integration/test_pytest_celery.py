"""pytest-celery's fixtures run leased tasks on local processes, with no container engine at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_celery import CeleryTestSetup

pytest.importorskip("pytest_celery")
from celery_lease.testing.pytest_celery import *  # noqa: F403  (as a user's conftest does)


@pytest.fixture
def lease_app() -> str:
    """The app of the worker node."""
    return "harness.app_pytest_celery:app"


@pytest.fixture(autouse=True)
def no_container_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks for a container engine gets an address where none is."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")


def test_a_setup_of_local_processes_is_ready_and_runs_a_leased_task(
    celery_setup: CeleryTestSetup,
) -> None:
    """All three nodes are ready, control reaches the worker and a task's result comes back."""
    assert celery_setup.ready(ping=False, control=True, docker=True)
    assert celery_setup.worker.get_running_processes_info(["pid"])
    result = celery_setup.app.send_task("job", (0.0,))
    assert result.get(timeout=20) == 1  # its deliveries


def test_a_task_outlives_its_worker_node(celery_setup: CeleryTestSetup, tmp_path: Path) -> None:
    """The node's own kill and restart act on the process; the message is run again by then."""
    result = celery_setup.app.send_task("job", (30.0, str(tmp_path / "go")))
    eventually((tmp_path / "go").exists, 20)
    celery_setup.worker.kill()
    assert celery_setup.worker.container.status == "exited"
    celery_setup.worker.restart()
    assert result.get(timeout=40) == 2
