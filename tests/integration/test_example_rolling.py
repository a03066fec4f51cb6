"""The example's rolling restart, run as a user runs it, and the verdict behind its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from example_project.jobdir import Event, Holder, LedgerLine
from example_project.rolling import Restart, judge
from example_project.sealing import add, expected_seal
from example_project.verdict import Evidence

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.demo
@pytest.mark.timeout(180)
def test_workers_are_restarted_one_after_the_other_and_jobs_go_on(tmp_path: Path) -> None:
    """Every job moves at its checkpoint, is finished once, and the exit code says so."""
    demo = subprocess.run(
        [sys.executable, "-m", "example_project.demo", "--scene", "rolling"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stdout.count("SIGTERM to") == 2
    assert "all of it was true" in demo.stdout
    assert "FAIL" not in demo.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_seal_depends_on_every_chunk_and_their_order() -> None:
    """What is left out, done twice or swapped shows."""
    seals = {
        add(add("", one), other)
        for one, other in ((b"a", b"b"), (b"b", b"a"), (b"a", b"a"), (b"ab", b""))
    }
    assert len(seals) == 4


def test_an_expected_seal_is_the_same_each_time(tmp_path: Path) -> None:
    """It is what the jobs are held against."""
    (tmp_path / "file").write_bytes(b"content" * 1000)
    assert expected_seal(tmp_path) == expected_seal(tmp_path)


RIGHT = "a" * 64
LEFT = [Restart(worker=name, code=0, seconds=1.0) for name in ("a", "b")]


def line(event: Event, worker: str, token: int, note: str = "") -> LedgerLine:
    """Return a ledger line at second ``token``."""
    holder = Holder(
        task_id="t", worker=worker, worker_id=worker, pid=1, token=token, deliveries=token
    )
    return LedgerLine(event=event, at=float(token), holder=holder, note=note)


MOVED = [
    line("start", "a", 1, "0"),
    line("handed over", "a", 1, "43"),
    line("start", "b", 2, "40"),
    line("handed over", "b", 2, "70"),
    line("start", "a", 3, "70"),
    line("finish", "a", 3),
]


def moved(**changes: object) -> Evidence:
    """A job that was handed over by both workers, as it should be, but for ``changes``."""
    facts: dict[str, object] = {
        "job": "job-1",
        "state": "SUCCESS",
        "ledger": MOVED,
        "manifest": {"sha256": RIGHT},
        "archive_sha256": RIGHT,
    }
    return Evidence(**{**facts, **changes})  # type: ignore[arg-type]


def faults(job: Evidence, restarts: list[Restart] = LEFT, left: int = 0) -> list[str]:
    """Return all that the verdict finds wrong."""
    checks = judge([job], RIGHT, restarts, left=left)
    return [fault for check in checks for fault in check.faults]


def test_a_job_that_moved_as_promised_has_no_faults() -> None:
    """The verdict is content with what a good run leaves behind."""
    assert faults(moved()) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"state": "FAILURE"}, "is FAILURE"),
        ({"manifest": {"sha256": "b"}}, "b and, on disk, a"),
        ({"archive_sha256": None}, "on disk, None"),
        ({"ledger": MOVED[:-1]}, "finished by [], the last holder was 3"),
        ({"ledger": [*MOVED, line("finish", "b", 2)]}, "finished by [3, 2]"),
        ({"ledger": [MOVED[0], *MOVED[2:]]}, "begun 3 times after 1 handovers"),
        (
            {"ledger": [*MOVED[:2], line("start", "b", 2, "30"), *MOVED[3:]]},
            "handed over at 43, taken up at 30",
        ),
        (
            {"ledger": [*MOVED[:2], line("start", "b", 2, "0"), *MOVED[3:]]},
            "handed over at 43, taken up at 0",
        ),
        ({"ledger": [MOVED[0], line("finish", "a", 1)]}, "a"),
    ],
)
def test_the_verdict_names_every_way_in_which_a_job_can_be_wrong(
    changes: dict[str, object], fault: str
) -> None:
    """An exit code of 0 is worth as much as the verdict is strict."""
    assert any(fault in found for found in faults(moved(**changes)))


def test_workers_that_did_not_leave_well_and_messages_left_over_are_faults() -> None:
    """A restart that was not one, one that failed, one that had to be killed."""
    assert faults(moved(), LEFT[:1]) == ["1 restarts"]
    failed = [LEFT[0], Restart(worker="b", code=1, seconds=1.0)]
    assert faults(moved(), failed) == ["b left with 1"]
    killed = [LEFT[0], Restart(worker="b", code=None, seconds=15.0)]
    assert faults(moved(), killed) == ["b left with None"]
    assert faults(moved(), left=2) == ["2 are"]
