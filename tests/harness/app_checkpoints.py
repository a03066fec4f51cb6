"""A worker's app with leased tasks that save checkpoints: ``celery -A harness.app_checkpoints``."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_lease import LeasedTask, ToolContext
from harness.app import app, gate_path, note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Task


@app.task(base=LeasedTask, name="checkpoints.items", bind=True)
def items(self: Task[Any, Any], count: int, crash_after: int, *, context: ToolContext) -> int:
    """Do some items, one checkpoint each; the first run's process is killed after some of them."""
    done: int = (context.restored or {"done": 0})["done"]
    note(self, "start", done=done)
    while done < count:
        note(self, "item", number=done)
        done += 1
        context.checkpoint({"done": done})
        if done == crash_after and context.deliveries == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    note(self, "end")
    return done


@app.task(base=LeasedTask, name="checkpoints.failing", bind=True, max_retries=1)
def failing(self: Task[Any, Any], *, context: ToolContext) -> None:
    """Fail twice: the first try is retried, the second is the last."""
    note(self, "try", restored=context.restored)
    context.checkpoint({"tries": self.request.retries + 1})
    if not self.request.retries:
        raise self.retry(countdown=0)
    raise ValueError("failed for good")


@app.task(base=LeasedTask, name="checkpoints.holders", bind=True, lease_on_lost="continue")
def holders(self: Task[Any, Any], gate: str, *, context: ToolContext) -> str:
    """Save who holds the task, again and again until this worker's gate opens, then once more.

    A run that lost its lease goes on, so that its late checkpoint reaches the store.
    """
    name = self.request.hostname or ""
    note(self, "start", restored=context.restored)
    context.checkpoint(f"{name} early")
    note(self, "saved")
    while not gate_path(gate, name).exists():
        context.beat()
        time.sleep(0.05)
    context.checkpoint(f"{name} late")
    note(self, "saved late")
    while not Path(f"{gate}.end").exists():
        context.beat()
        time.sleep(0.05)
    return name


@app.task(base=LeasedTask, name="checkpoints.rows", bind=True, lease_interruptible=True)
def rows(self: Task[Any, Any], last: int, every: float, *, context: ToolContext) -> int:
    """Go through rows in a loop that resumes, 20 in a second."""
    note(self, "start", deliveries=context.deliveries)

    def rows_after(row: int | None) -> Iterator[int]:
        return iter(range((row or 0) + 1, last + 1))

    done = 0
    for done in context.iterate(rows_after, cursor=lambda row: row, every=every, total=last):
        time.sleep(0.05)
        note(self, "row", row=done)
    return done
