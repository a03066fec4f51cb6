"""The matrix is the same everywhere: metadata, nox, the workflows, and what .ci/run leaves out."""

from __future__ import annotations

import os
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
        if each != "3.14" or celery == "5.7"  # the first that says it runs there
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


#: Stands for mike: notes its arguments, and commits to gh-pages as it does.
MIKE = """#!/bin/sh
shift 4
echo "$*" >> "$NOTES"
case $1 in
  list) git rev-parse --verify -q gh-pages ;;
  deploy) git branch -f gh-pages "$(git commit-tree -m "$*" $(
      git rev-parse -q --verify gh-pages | sed 's/^/-p /') HEAD^{tree})" ;;
esac
"""
#: Refuses the first push, as where another run has published meanwhile.
REFUSES_ONCE = """#!/bin/sh
[ -e refused ] || { touch refused; exit 1; }
"""


@pytest.mark.parametrize(
    ("kind", "name", "deployed"),
    [
        ("branch", "main", "dev latest"),
        ("tag", "v1.10.1", "--update-aliases 1.10 latest"),
        ("tag", "v1.9.4", "1.9"),
        ("tag", "v2.0.0rc1", "2.0"),
    ],
)
def test_only_the_newest_release_becomes_the_latest_docs(
    tmp_path: Path, kind: str, name: str, deployed: str
) -> None:
    """And a push that another one overtook is made again, on top of that."""
    environ = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "NOTES": str(tmp_path / "notes"),
        "GITHUB_REF_TYPE": kind,
        "GITHUB_REF_NAME": name,
    }

    def run(*command: str, within: str = "clone") -> None:
        subprocess.run(command, cwd=tmp_path / within, env=environ, check=True)

    run("git", "init", "-q", "--bare", "origin", within=".")
    run("git", "clone", "-q", "origin", "clone", within=".")
    for program, text in (("uv", MIKE), ("origin/hooks/pre-receive", REFUSES_ONCE)):
        (tmp_path / program).write_text(text)
        (tmp_path / program).chmod(0o700)
    [publish] = (each for each in workflow("docs.yml")["publish"]["steps"] if "run" in each)
    script = publish["run"].splitlines(keepends=True)
    identity = [line for line in script if line.startswith("git config")]
    run("bash", "-e", "-c", "".join([*identity, "git commit -q --allow-empty -m first"]))
    for each in ("v1.9.4", "v1.10.0", "v1.10.1", "v2.0.0rc1"):
        run("git", "tag", each)
    run("bash", "-e", "-c", publish["run"])
    notes = (tmp_path / "notes").read_text().splitlines()
    first, again = (line for line in notes if line.startswith("deploy"))
    assert (first, again) == (
        f"deploy {deployed}",
        f"deploy {deployed}".replace("dev latest", "dev"),
    )
    run("git", "merge-base", "--is-ancestor", "origin/gh-pages", "gh-pages")


def test_ci_says_what_it_leaves_out(sessions: set[str]) -> None:
    """Every session is one that .ci/run does, in its own way, or one that it names."""
    said = re.findall(r"^#: (does|leaves out): (.+)$", CI.read_text(), re.MULTILINE)
    names = [name for _, line in said for name in re.split(r", ", line)]
    assert sorted(names) == sorted(sessions)
