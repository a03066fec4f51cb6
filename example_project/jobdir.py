"""What a job keeps in its directory, and the fence that decides who may finish it.

::

    <job>/fence                    the newest holder's token; its lock guards the two steps below
    <job>/ledger.jsonl             one line for every start, finish, loss and refusal
    <job>/progress.token-<n>.json  how far the holder with token n is
    <job>/archive.token-<n>.part   what that holder has written
    <job>/archive.tar.gz           the finished archive
    <job>/manifest.json            the result, written by the one holder that finished

Every holder writes to files of its own token, so a former holder that has not noticed yet spoils
nothing. Only the steps that count, to begin and to publish, pass :meth:`JobDir.fenced`, and it lets
nobody pass who is older than the newest seen there. All times are wall-clock seconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Event = Literal["start", "finish", "lost", "refused", "handed over"]
FENCE: Final = "fence"


class SupersededError(Exception):
    """A holder with a newer fencing token has begun this job; leave it alone."""

    def __init__(self, token: int, newest: int) -> None:
        super().__init__(token, newest)
        self.token = token
        self.newest = newest

    def __str__(self) -> str:
        return f"fencing token {self.token} is older than {self.newest}, which holds this job now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who runs a job: one delivery of its message to one process."""

    task_id: str
    worker: str  #: node name, as ``celery worker -n`` gave it
    worker_id: str  #: unique even if a node name is used again
    pid: int
    token: int
    deliveries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far one holder is, and until when its lease runs as far as it knows."""

    holder: Holder
    done: int
    total: int
    lease_until: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """One thing that happened to a job."""

    event: Event
    at: float
    holder: Holder
    note: str = ""


@dataclass(frozen=True, slots=True)
class JobDir:
    """The files of one job."""

    path: Path

    @property
    def archive(self) -> Path:
        """The finished archive."""
        return self.path / "archive.tar.gz"

    def part(self, token: int) -> Path:
        """Where the holder of this token writes."""
        return self.path / f"archive.token-{token}.part"

    @contextmanager
    def fenced(self, token: int) -> Iterator[None]:
        """Be the job's newest holder for the length of the block, with everybody else shut out.

        Raises:
            SupersededError: A newer holder was here; touch nothing.
        """
        with (self.path / FENCE).open("a+") as fence:
            fcntl.flock(fence, fcntl.LOCK_EX)  # let go by the kernel, however the process ends
            fence.seek(0)
            newest = int(fence.read() or 0)
            if token < newest:
                raise SupersededError(token, newest)
            fence.truncate(0)
            fence.write(str(token))
            fence.flush()
            yield

    def publish(self, holder: Holder, manifest: dict[str, Any]) -> None:
        """Make this holder's archive the job's one; call it inside :meth:`fenced`."""
        self.part(holder.token).replace(self.archive)
        _write(self.path / "manifest.json", manifest)
        self.log("finish", holder)
        for orphan in self.path.glob("archive.token-*.part"):
            orphan.unlink()

    def manifest(self) -> dict[str, Any] | None:
        """Return what the finished job wrote, or None."""
        return _read(self.path / "manifest.json")

    def log(self, event: Event, holder: Holder, note: str = "") -> None:
        """Add a line to the ledger: one write, so that lines of two processes never mix."""
        line = LedgerLine(event=event, at=time.time(), holder=holder, note=note)
        with (self.path / "ledger.jsonl").open("ab", buffering=0) as ledger:
            ledger.write(json.dumps(asdict(line)).encode() + b"\n")

    def ledger(self) -> list[LedgerLine]:
        """Return all that happened so far, oldest first."""
        try:
            lines = (self.path / "ledger.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [_ledger_line(json.loads(line)) for line in lines]

    def report(self, progress: Progress) -> None:
        """Tell onlookers how far this holder is."""
        _write(self._progress_file(progress.holder.token), asdict(progress))

    def progress(self) -> Progress | None:
        """Return the report of the newest holder, or None before the first start."""
        holders = [line.holder for line in self.ledger() if line.event == "start"]
        if not holders:
            return None
        newest = max(holders, key=lambda holder: holder.token)
        found = _read(self._progress_file(newest.token))
        if found is None:
            return Progress(holder=newest, done=0, total=1, lease_until=None)
        return _progress(found)

    def _progress_file(self, token: int) -> Path:
        return self.path / f"progress.token-{token}.json"


def _write(path: Path, value: dict[str, Any]) -> None:
    """Replace the file in one step: a reader sees the old text or the new one, never half of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value))
    draft.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return found


def _ledger_line(found: dict[str, Any]) -> LedgerLine:
    return LedgerLine(**{**found, "holder": Holder(**found["holder"])})


def _progress(found: dict[str, Any]) -> Progress:
    return Progress(**{**found, "holder": Holder(**found["holder"])})
