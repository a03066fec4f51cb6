"""A worker's app for messages that are lost again and again: ``celery -A harness.app_poison``."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from celery.signals import task_failure

from celery_lease import LeasedTask, ToolContext
from harness.app import note
from harness.ledger import record
from harness.setup import Setup

if TYPE_CHECKING:
    from celery import Task

app = Setup.from_env().app("poison")


@app.task(name="poison.kills", base=LeasedTask, bind=True, lease_max_deliveries=2)
def kills(self: Task[Any, Any], *, context: ToolContext) -> None:
    """End the process that runs it, whole, whatever else that process does."""
    note(self, "start", deliveries=context.deliveries)
    context.beat(3, 10, note="sawing")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="poison.crashes", base=LeasedTask, bind=True, lease_max_deliveries=1)
def crashes(self: Task[Any, Any]) -> None:
    """Read where there is nothing, as a faulty C library does."""
    note(self, "start")
    ctypes.string_at(0)


@app.task(name="poison.kills_worker", base=LeasedTask, bind=True, lease_max_deliveries=2)
def kills_worker(self: Task[Any, Any], pool: str, *, context: ToolContext) -> None:
    """End the worker that runs it, while others wait behind it."""
    note(self, "start", deliveries=context.deliveries)
    time.sleep(1)
    os.kill(os.getppid() if pool == "prefork" else os.getpid(), signal.SIGKILL)
    time.sleep(60)


@app.task(name="poison.innocent", base=LeasedTask, bind=True, lease_max_deliveries=1)
def innocent(self: Task[Any, Any], *, context: ToolContext) -> int:
    """Just work, and allow no loss."""
    note(self, "start", deliveries=context.deliveries)
    return context.deliveries


@app.task(name="poison.hangs", base=LeasedTask, bind=True, lease_max_deliveries=2)
def hangs(self: Task[Any, Any], *, context: ToolContext) -> None:
    """Never beat."""
    note(self, "start", deliveries=context.deliveries)
    time.sleep(60)


@app.task(
    name="poison.limited",
    base=LeasedTask,
    bind=True,
    lease_max_deliveries=1,
    time_limit=1,
    acks_on_failure_or_timeout=False,
)
def limited(self: Task[Any, Any], *, context: ToolContext) -> None:
    """Run into its hard time limit, which does not acknowledge it."""
    note(self, "start", deliveries=context.deliveries)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.05)
        context.beat()


@app.task(name="poison.memory", base=LeasedTask, bind=True)
def memory(self: Task[Any, Any], *, context: ToolContext) -> None:
    """Ask for more memory than there is."""
    note(self, "start", deliveries=context.deliveries)
    raise MemoryError("all of it")


@app.task(name="poison.fine", base=LeasedTask, bind=True)
def fine(self: Task[Any, Any], *, context: ToolContext) -> str:
    """Just work."""
    note(self, "start", deliveries=context.deliveries)
    return context.worker_id


@app.task(name="poison.errback")
def errback(task_id: str) -> None:
    """Note which task failed."""
    record("errback", task_id)


@app.task(name="poison.chord")
def chord_body(results: list[Any]) -> None:
    """Never called: a header task fails."""
    record("body", results=results)


@task_failure.connect
def failed(sender: Task[Any, Any], task_id: str, exception: BaseException, **_: Any) -> None:
    """Note the signal; a test that imports this module has other apps too."""
    if sender.app is not app:
        return
    record("failed", task_id, error=type(exception).__name__)
