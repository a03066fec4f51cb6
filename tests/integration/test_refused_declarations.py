"""What a worker says of a task that is declared wrongly: one line, however Celery comes by it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.compat

HEAD = """
from celery import Celery
from celery_lease import LeasedTask, leased_task
app = Celery("proj", broker="memory://", include=INCLUDE)
"""
EARLY = "@leased_task(name='mine', acks_late=False)\ndef f(): ...\n"
PROJECTS = {
    "option": EARLY,
    "option of another module": "",
    "option that is read late": "@app.task(base=LeasedTask, name='mine', acks_late=False)\n"
    "def f(): ...\n",
    "annotation": "app.conf.task_annotations = {'mine': {'acks_late': False}}\n"
    "@leased_task(name='mine')\ndef f(): ...\n",
    "annotation of all": "app.conf.task_annotations = {'*': {'acks_late': False}}\n"
    "@leased_task(name='mine')\ndef f(): ...\n",
    "async": "@leased_task(name='mine')\nasync def f(): ...\n",
}


@pytest.mark.parametrize("how", PROJECTS)
def test_a_wrong_declaration_stops_a_worker_with_one_line(how: str, tmp_path: Path) -> None:
    """It names the task, the option and why; no traceback.

    Failed before with a traceback of 30 frames in each case.
    """
    another = how == "option of another module"
    head = HEAD.replace("INCLUDE", "['proj_tasks']" if another else "[]")
    (tmp_path / "proj.py").write_text(head + PROJECTS[how])
    (tmp_path / "proj_tasks.py").write_text("from celery_lease import leased_task\n" + EARLY)
    ran = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "proj", "worker", "-P", "solo"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    (line,) = [line for line in ran.stdout.splitlines() if "Warning" not in line and line.strip()]
    assert line.startswith("Error: wrong lease setting of task 'mine': ")
    assert ("run = " if how == "async" else "acks_late = False") in line
    assert ran.returncode == 1


def test_other_errors_of_a_project_are_shown_as_ever(tmp_path: Path) -> None:
    """With Celery's words and the traceback."""
    (tmp_path / "proj.py").write_text("1 / 0\n")
    ran = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "proj", "worker"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "Unable to load celery application" in ran.stderr
    assert "ZeroDivisionError" in ran.stderr
