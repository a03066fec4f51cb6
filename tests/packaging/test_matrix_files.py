"""The matrix is the same everywhere: metadata, nox, the workflows, and what .ci/run leaves out."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
CI = ROOT / ".ci" / "run"

pytestmark = pytest.mark.skipif(not WORKFLOWS.exists(), reason="the repository's alone")


@pytest.fixture(scope="module")
def sessions() -> set[str]:
    """The names that ``nox -l`` lists."""
    pytest.importorskip("nox", reason="nox is in the extra 'lint'")
    command = [sys.executable, "-m", "nox", "--list", "-f", str(ROOT / "noxfile.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(re.findall(r"^[*-] (\S+) ->", done.stdout, re.MULTILINE))


def workflow(name: str) -> dict[str, Any]:
    """Return a workflow's jobs."""
    loaded: dict[str, Any] = yaml.safe_load((WORKFLOWS / name).read_text())
    return dict(loaded["jobs"])


def test_the_workflow_runs_every_session(sessions: set[str]) -> None:
    """And none that does not exist."""
    jobs = workflow("tests.yml")
    run = jobs["linux"]["strategy"]["matrix"]["session"]
    assert sorted(run) == sorted(sessions)
    elsewhere = jobs["elsewhere"]["strategy"]["matrix"]["include"]
    assert {each["session"] for each in elsewhere} <= set(run)


def test_every_python_and_celery_of_the_metadata_is_tried(sessions: set[str]) -> None:
    """With each other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)'", str(project["classifiers"]))
    wanted = {
        f"tests(py{each}-celery{celery})".replace(".", "")
        for each in named
        for celery in ("5.5", "5.6", "5.7")
    }
    assert wanted <= sessions
    assert project["dependencies"] == ["celery>=5.5,<5.8"]
    assert project["requires-python"] == f">={named[0]}"


def test_nothing_is_published_untested_or_with_a_password() -> None:
    """The index trusts the workflow by its identity."""
    jobs = workflow("release.yml")
    publish = jobs["publish"]
    assert set(publish["needs"]) == {"tests", "build"}
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in (WORKFLOWS / "release.yml").read_text()


def test_ci_says_what_it_leaves_out(sessions: set[str]) -> None:
    """Every session is one that .ci/run does, in its own way, or one that it names."""
    said = re.findall(r"^#: (does|leaves out): (.+)$", CI.read_text(), re.MULTILINE)
    names = [name for _, line in said for name in re.split(r", ", line)]
    assert sorted(names) == sorted(sessions)
