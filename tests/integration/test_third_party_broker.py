"""A driver of somebody else's, which nothing here knows of: the example's, as if installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.setup import Setup
from harness.waiting import eventually
from harness.workers import TESTS, WorkerOptions

if TYPE_CHECKING:
    from harness.ledger import Ledger
    from harness.workers import WorkerFleet

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_broker"
pytestmark = pytest.mark.compat


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example as processes find it that begin now: its module, and its entry points."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / "site" / "celery_lease_filesystem-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in each.items())
        for group, each in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(points))
    path = [str(info.parent), str(EXAMPLE), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    return info.parent


def doctor(setup: Setup) -> str:
    """Return what the doctor says of a broker that it knows nothing of by itself."""
    path = os.pathsep.join([str(TESTS), os.environ["PYTHONPATH"]])
    command = [sys.executable, "-m", "celery", "-A", "harness.app_leased", "lease", "doctor"]
    env = {**os.environ, **setup.env(), "PYTHONPATH": path}
    return subprocess.run(
        [*command, "--json"], env=env, capture_output=True, text=True, check=False
    ).stdout


def test_it_is_short() -> None:
    """All of its Python and its project file."""
    files = [*EXAMPLE.glob("*.py"), EXAMPLE / "pyproject.toml"]
    assert sum(len(each.read_text().splitlines()) for each in files) < 250


@pytest.mark.usefixtures("installed")
def test_it_passes_the_suite_that_everybody_can_have() -> None:
    """In a process of its own, with no help from this project's tests."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    ran = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    passed, skipped = (
        int(found[1]) if (found := re.search(rf"(\d+) {word}", ran.stdout)) else 0
        for word in ("passed", "skipped")
    )
    assert passed > 25
    assert skipped == 4, "what needs an order, and dead letters"


@pytest.mark.usefixtures("installed")
def test_workers_on_it_have_leases(fleet: WorkerFleet, ledger: Ledger, tmp_path: Path) -> None:
    """A killed worker's task is taken over when its lease is over, with a greater token."""
    folder = tmp_path / "messages"
    folder.mkdir()
    options: dict[str, Any] = {
        "data_folder_in": str(folder),
        "data_folder_out": str(folder),
        "control_folder": str(tmp_path / "control"),
        "polling_interval": 0.05,
    }
    setup = Setup("filesystem://", conf={"broker_transport_options": options})
    leased = WorkerOptions(module="harness.app_leased")
    first = fleet.start(setup, leased)
    task = setup.app().send_task("any.work", (30.0, 0.2))
    ledger.wait("start", task.id)
    assert "broker.reached" in doctor(setup)
    first.kill_group()
    fleet.start(setup, leased)
    ledger.wait("end", task.id, within=30)
    tokens = [each.facts["token"] for each in ledger.entries("start", task.id)]
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 2
    eventually(lambda: not list(folder.rglob("*.celery.msg")), what="nothing is left")
