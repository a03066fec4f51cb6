"""The tasks of every cell: ``celery -A matrix.app worker``; mode and extension are settings."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_lease import LeasedTask, ShutdownRequested, TaskCancelled, ToolContext
from harness import ledger
from harness.app import note
from harness.ledger import Ledger
from harness.rabbitmq import with_queue
from harness.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Task

app = with_queue(Setup.from_env().app("matrix"))

#: What the command of :func:`command` writes, a line each half second.
LINES = 10
SCRIPT = f"for i in $(seq {LINES}); do echo line $i; sleep 0.5; done"


@contextmanager
def noted(task: Task[Any, Any], context: ToolContext) -> Iterator[int]:
    """Note start and end of a run, and give its number."""
    note(task, "start", deliveries=context.deliveries, token=context.fencing_token)
    yield Ledger(Path(os.environ[ledger.ENV])).count("start", task.request.id)
    note(task, "end")


def beat_for(context: ToolContext, seconds: float) -> None:
    """Work for some seconds, beating all the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
        context.beat()


@app.task(name="matrix.work", bind=True, base=LeasedTask)
def work(
    self: Task[Any, Any], seconds: float, again: float | None = None, *, context: ToolContext
) -> None:
    """Work for some seconds, in later runs for others, with beats where the mode asks for them."""
    with noted(self, context) as run:
        seconds = seconds if run == 1 or again is None else again
        if app.conf.lease_mode == "heartbeat":
            beat_for(context, seconds)
        else:
            time.sleep(seconds)


@app.task(name="matrix.stuck", bind=True, base=LeasedTask)
def stuck(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> None:
    """Say nothing for some seconds, but only in the first run."""
    with noted(self, context) as run:
        if run == 1:
            time.sleep(seconds)


@app.task(name="matrix.quiet", bind=True, base=LeasedTask)
def quiet(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> None:
    """Say nothing for some seconds, as declared before."""
    with noted(self, context), context.quiet(seconds + 1):
        time.sleep(seconds)


@app.task(name="matrix.command", bind=True, base=LeasedTask)
def command(self: Task[Any, Any], *, context: ToolContext) -> None:
    """Run a command that outlasts the lease and writes all the time."""
    with noted(self, context):
        done = context.run(["sh", "-c", SCRIPT], text=True)
        note(self, "output", code=done.returncode, lines=done.stdout.splitlines())


@app.task(name="matrix.again", bind=True, base=LeasedTask, max_retries=2)
def again(self: Task[Any, Any], *, context: ToolContext) -> None:
    """Retry at once, twice."""
    with noted(self, context):
        if self.request.retries < 2:
            raise self.retry(countdown=0)


@app.task(name="matrix.handed", bind=True, base=LeasedTask, lease_interruptible=True)
def handed(self: Task[Any, Any], *, context: ToolContext) -> None:
    """Work in the first run until the worker stops."""
    with noted(self, context) as run:
        try:
            beat_for(context, 600.0 if run == 1 else 0.0)
        except ShutdownRequested:
            note(self, "asked")
            raise


@app.task(name="matrix.cancelled", bind=True, base=LeasedTask)
def cancelled(self: Task[Any, Any], *, context: ToolContext) -> None:
    """Work until it is cancelled."""
    with noted(self, context):
        try:
            beat_for(context, 600.0)
        except TaskCancelled:
            note(self, "cancelled")
            raise
