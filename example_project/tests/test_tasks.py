"""The example's tasks, tested as an application's would be: with the fixtures of celery-lease.

``lease_context``, ``make_lease_context`` and ``lease_clock`` need no broker and no time;
``assert_beats_within`` measures; ``lease_worker`` is the real thing. See docs/testing.md.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from example_project import tasks
from example_project.app import app
from example_project.jobdir import JobDir
from example_project.packer import ArchiveWriter, archive_checksum, expected_checksum
from example_project.sealing import expected_seal

from celery_lease import LeaseLost, ShutdownRequested

if TYPE_CHECKING:
    from pathlib import Path

    from celery_lease.testing import BeatAssertion, LeaseClock, RecordedContext
    from celery_lease.testing.plugin import MakeContext, StartWorker


@pytest.fixture(autouse=True)
def _settings() -> None:
    """The tasks are this app's, whatever app a test before this one has made the current one."""
    app.set_current()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory to pack, of a hundred chunks and more."""
    root = tmp_path / "tree"
    root.mkdir()
    (root / "data").write_bytes(bytes(range(256)) * 400)
    return root


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    """Where the tasks work."""
    return JobDir(tmp_path / "job")


def test_packing_makes_the_right_archive_and_tells_its_progress(
    tree: Path, job: JobDir, lease_context: RecordedContext
) -> None:
    """The work itself, without a word of leases: a task is called like any function."""
    manifest = tasks.pack(str(job.path), str(tree), context=lease_context)
    assert manifest["sha256"] == expected_checksum(tree)
    progress = lease_context.progress
    assert progress.done == progress.total
    assert len(lease_context.beats) == progress.done + 1


def test_a_job_whose_lease_is_lost_publishes_nothing(
    tree: Path, job: JobDir, lease_context: RecordedContext
) -> None:
    """The lease goes after ten beats, in the middle of the work."""
    lease_context.lose(after=10)
    with pytest.raises(LeaseLost):
        tasks.pack(str(job.path), str(tree), context=lease_context)
    assert job.manifest() is None
    assert [line.event for line in job.ledger()] == ["start", "lost"]


def test_a_former_holder_cannot_publish(
    tree: Path, job: JobDir, make_lease_context: MakeContext
) -> None:
    """It was thought dead, and comes back when the next one is done."""
    args = (str(job.path), str(tree))
    late = make_lease_context(fencing_token=1)
    late.lose(after=10)
    with pytest.raises(LeaseLost):
        tasks.pack(*args, context=late)
    tasks.pack(*args, context=make_lease_context(fencing_token=2, deliveries=2))
    assert tasks.pack(*args, context=make_lease_context(fencing_token=1))["token"] == 2


def test_a_seal_goes_on_from_its_checkpoint_after_a_shutdown(
    tree: Path, job: JobDir, make_lease_context: MakeContext
) -> None:
    """Told to stop after 12 beats; the next delivery gets what was saved last."""
    first = make_lease_context(tasks.seal)
    first.shut_down(after=12)
    with pytest.raises(ShutdownRequested):
        tasks.seal(str(job.path), str(tree), context=first)
    assert first.saved
    second = make_lease_context(tasks.seal, restored=first.saved[-1], fencing_token=2)
    manifest = tasks.seal(str(job.path), str(tree), context=second)
    assert manifest["sha256"] == expected_seal(tree)
    assert second.beats[0].done == 0
    assert second.saved[0]["done"] > first.saved[-1]["done"]


def test_packing_beats_often_enough(
    tree: Path, job: JobDir, assert_beats_within: BeatAssertion
) -> None:
    """Half of a lease is allowed: 3 s by the example's settings, in real time."""
    assert_beats_within(tasks.pack, str(job.path), str(tree))


def test_packing_beats_often_enough_on_a_slow_disk(
    tree: Path,
    job: JobDir,
    assert_beats_within: BeatAssertion,
    lease_clock: LeaseClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two seconds a chunk, which take no time here: the clock is moved instead."""
    write = ArchiveWriter.write

    def slow(archive: ArchiveWriter, chunk: bytes) -> None:
        lease_clock.advance(2)
        write(archive, chunk)

    monkeypatch.setattr(ArchiveWriter, "write", slow)
    assert_beats_within(tasks.pack, str(job.path), str(tree))


def test_a_job_outlives_its_worker(tree: Path, job: JobDir, lease_worker: StartWorker) -> None:
    """Two real workers and a broker; the one that holds the job is killed."""
    workers = [lease_worker(app, "-P", "threads") for _ in range(2)]
    result = tasks.pack.delay(str(job.path), str(tree), seconds=2)
    holder = _holder_of(job)
    next(worker for worker in workers if worker.hostname == holder).kill()
    assert result.get(timeout=30)["deliveries"] == 2
    assert archive_checksum(job.archive) == expected_checksum(tree)


def _holder_of(job: JobDir) -> str:
    """Wait for the job's start and return the name of its worker."""
    until = time.monotonic() + 20
    while not job.ledger():
        assert time.monotonic() < until, "the job was not started"
        time.sleep(0.05)
    return job.ledger()[0].holder.worker
