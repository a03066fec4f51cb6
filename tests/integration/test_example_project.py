"""The example's demo, run as a user runs it: its exit code is the verdict on the whole library."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from example_project.jobdir import Event, Holder, JobDir, LedgerLine, SupersededError
from example_project.verdict import Evidence, Kill, judge

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
DEMO = (sys.executable, "-m", "example_project.demo")
#: The same with a job that is never far enough for the kill, however slow the machine is.
UNRIPE = (
    sys.executable,
    "-c",
    "from example_project import demo, play; play.RIPE = 2; raise SystemExit(demo.main())",
)


def children_with(home: Path) -> list[psutil.Process]:
    """Return all living processes whose temporary directory is this one or is in it."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR", "").startswith(str(home)):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A temporary directory of the demo's own; it and the process table are bare afterwards."""
    directory = tmp_path / "home"
    directory.mkdir()
    yield directory
    leftovers = children_with(directory)
    for process in leftovers:
        process.kill()
    assert leftovers == []
    assert list(directory.iterdir()) == []


def start_demo(home: Path, *options: str, command: tuple[str, ...] = DEMO) -> subprocess.Popen[str]:
    """Start the demo with its temporary files in ``home``."""
    return subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.demo
@pytest.mark.timeout(200)
def test_the_demo_kills_a_worker_and_nothing_goes_wrong(home: Path) -> None:
    """The README's first command: a SIGKILL, every job done once, checksums right, exit code 0."""
    demo = start_demo(home)
    output, _ = demo.communicate(timeout=180)
    assert demo.returncode == 0, output
    assert "SIGKILL to" in output
    assert "all of it was true" in output
    assert "FAIL" not in output
    found = re.search(r"started again on \w+ ([\d.]+) s .*promised: ([\d.]+) s", output)
    assert found is not None, output
    took, promised = map(float, found.groups())
    assert took <= promised


@pytest.mark.demo
def test_the_demo_says_so_when_no_worker_could_be_killed_in_time(
    home: Path, tmp_path: Path
) -> None:
    """A promise that was never put to the test does not count as kept."""
    (tmp_path / "tree").mkdir()
    options = ("--tree", str(tmp_path / "tree"), "--seconds", "0", "--jobs", "1")
    demo = start_demo(home, *options, command=UNRIPE)
    output, _ = demo.communicate(timeout=120)
    assert demo.returncode == 1, output
    assert "no worker was caught with a job half done" in output


@pytest.mark.demo
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(home: Path, sign: signal.Signals) -> None:
    """Ctrl-C in the middle: no process, no file; the fixture looks for both."""
    demo = start_demo(home, "--seconds", "60")
    assert demo.stdout is not None
    for line in demo.stdout:
        if "running" in line:
            break
    demo.send_signal(sign)
    began = time.monotonic()
    output, _ = demo.communicate(timeout=30)
    assert demo.returncode == 130, output
    assert time.monotonic() - began < 15


RIGHT, WRONG = "a" * 64, "b" * 64


def holder(worker: str, token: int) -> Holder:
    """A holder of whom only the worker and the token matter."""
    return Holder(
        task_id="t", worker=worker, worker_id=worker, pid=1, token=token, deliveries=token
    )


def line(event: Event, worker: str, token: int) -> LedgerLine:
    """A ledger line at second ``token``."""
    return LedgerLine(event=event, at=float(token), holder=holder(worker, token))


def taken_over(**changes: object) -> Evidence:
    """A job that went from a killed worker to another one, as it should, but for ``changes``."""
    facts: dict[str, object] = {
        "job": "job-1",
        "state": "SUCCESS",
        "ledger": [line("start", "a", 1), line("start", "b", 2), line("finish", "b", 2)],
        "manifest": {"sha256": RIGHT, "token": 2},
        "archive_sha256": RIGHT,
    }
    return Evidence(**{**facts, **changes})  # type: ignore[arg-type]


def faults(job: Evidence, kill: Kill | None, left: int = 0) -> list[str]:
    """Return all that the verdict finds wrong."""
    checks = judge([job], RIGHT, kill, kill_wanted=True, left=left)
    return [fault for check in checks for fault in check.faults]


KILL = Kill(worker="a", at=1.5, tokens={"job-1": 1}, free=1)


def test_a_job_that_was_taken_over_as_promised_has_no_faults() -> None:
    """The verdict is content with what a good run leaves behind."""
    assert faults(taken_over(), KILL) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"state": "FAILURE"}, "is FAILURE"),
        ({"manifest": {"sha256": WRONG, "token": 2}}, "the task reports b"),
        ({"archive_sha256": WRONG}, "the archive on disk has b"),
        ({"archive_sha256": None}, "the archive on disk has None"),
        ({"ledger": [line("start", "a", 1), line("start", "b", 2)]}, "finished 0 times"),
        (
            {"ledger": [line("start", "a", 1), line("start", "b", 2), line("finish", "a", 1)]},
            "finished with token 1, the last holder's was 2",
        ),
        (
            {"ledger": [*taken_over().ledger, line("finish", "b", 2)]},
            "finished 2 times",
        ),
        (
            {"ledger": [line("start", "b", 0), *taken_over().ledger]},
            "begun 3 times instead of 2",
        ),
        (
            {"ledger": [line("start", "a", 1), line("finish", "a", 1)]},
            "nobody else started it with a token above 1",
        ),
    ],
)
def test_the_verdict_names_every_way_in_which_a_job_can_be_wrong(
    changes: dict[str, object], fault: str
) -> None:
    """An exit code of 0 is worth as much as the verdict is strict."""
    assert any(fault in found for found in faults(taken_over(**changes), KILL))


def test_a_message_that_is_left_over_is_a_fault() -> None:
    """A job that is done, and will be done again, was not done once."""
    assert faults(taken_over(), KILL, left=1) == ["1 are"]


def test_a_former_holder_can_not_publish_over_a_newer_one(tmp_path: Path) -> None:
    """The fence asks for the token, not for what the holder believes of itself."""
    job = JobDir(tmp_path)
    with job.fenced(1):
        pass
    with job.fenced(2):
        pass
    with pytest.raises(SupersededError, match="token 1 is older than 2"), job.fenced(1):
        pytest.fail("the former holder was let in")
