"""What really ran: an append-only file that tasks write and tests read.

Independent of the code under test, of the broker and of the result backend.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

ENV = "HARNESS_LEDGER"
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Return seconds on the clock of the entries: all processes of the host share it."""
    return time.clock_gettime(_CLOCK)


def record(event: str, task_id: str = "", worker: str = "", **facts: Any) -> None:
    """Append one entry, whole, to the file that the environment names."""
    entry = {
        "event": event,
        "task_id": task_id,
        "worker": worker,
        "pid": os.getpid(),
        "at": now(),
        "facts": facts,
    }
    # One write to an O_APPEND file: entries of several processes never mix.
    descriptor = os.open(os.environ[ENV], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.write(descriptor, json.dumps(entry).encode() + b"\n")
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event of one run of a task. ``at`` is seconds on :func:`now`'s clock."""

    event: str
    task_id: str
    worker: str
    pid: int
    at: float
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The reader's side."""

    path: Path

    def entries(self, event: str | None = None, task_id: str | None = None) -> list[Entry]:
        """Return the entries in the order they were written, filtered by what is given."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().split("\n")[:-1]  # what follows the last newline is not whole
        entries = [Entry(**json.loads(line)) for line in lines]
        return [
            entry
            for entry in entries
            if event in (None, entry.event) and task_id in (None, entry.task_id)
        ]

    def count(self, event: str, task_id: str | None = None) -> int:
        return len(self.entries(event, task_id))

    def wait(
        self, event: str, task_id: str | None = None, *, count: int = 1, within: float = 20.0
    ) -> list[Entry]:
        """Return the entries once there are ``count``, or fail after ``within`` seconds."""
        from harness.waiting import eventually  # not in a worker without this version

        eventually(
            lambda: self.count(event, task_id) >= count,
            within,
            what=lambda: f"{count} x {event!r} in {self.path.name}: {self.entries()}",
        )
        return self.entries(event, task_id)

    def most_at_once(self, task_id: str | None = None) -> int:
        """Return how many runs were between "start" and "end" at the same time, at most."""
        running = most = 0
        for entry in sorted(self.entries(task_id=task_id), key=lambda entry: entry.at):
            running += {"start": 1, "end": -1}.get(entry.event, 0)
            most = max(most, running)
        return most
