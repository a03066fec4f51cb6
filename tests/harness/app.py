"""A worker's app with plain tasks: ``celery -A harness.app worker``.

Other test modules take ``app`` from here and add their own tasks.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.ledger import record
from harness.setup import Setup

if TYPE_CHECKING:
    from celery import Task

app = Setup.from_env().app()


def note(task: Task[Any, Any], event: str, **facts: Any) -> None:
    """Record an event of the running task in the ledger."""
    record(event, task.request.id or "", task.request.hostname or "", **facts)


@app.task(name="stock.long", bind=True, acks_late=True)
def long(self: Task[Any, Any], seconds: float) -> float:
    """Work for some seconds, acknowledged late."""
    note(self, "start")
    time.sleep(seconds)
    note(self, "end")
    return seconds


@app.task(name="stock.early", bind=True)
def early(self: Task[Any, Any], seconds: float = 0.0) -> float:
    """Work for some seconds, acknowledged before."""
    note(self, "start")
    time.sleep(seconds)
    note(self, "end")
    return seconds


@app.task(name="stock.gated", bind=True, acks_late=True)
def gated(self: Task[Any, Any], gate: str) -> None:
    """Work until the test opens this worker's gate, acknowledged late."""
    note(self, "start")
    while not gate_path(gate, self.request.hostname or "").exists():
        time.sleep(0.02)
    note(self, "end")


def gate_path(gate: str, hostname: str) -> Path:
    """Return the file whose existence opens a gate for one worker."""
    return Path(f"{gate}.{hostname}")


@app.task(name="stock.noop", acks_late=True, ignore_result=True)
def noop() -> None:
    """Do nothing, acknowledged late."""
