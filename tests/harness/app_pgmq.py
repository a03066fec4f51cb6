"""A worker's app with leased tasks for pgmq: ``celery -A harness.app_pgmq worker``."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from celery_lease import current_context
from celery_lease.task import LeasedTask
from harness.app import app, note

if TYPE_CHECKING:
    from celery import Task

__all__ = ["app"]


@app.task(name="pgmq.work", bind=True, base=LeasedTask, lease_extension=4)
def work(self: Task[Any, Any], seconds: float) -> None:
    """Work for some seconds, beating all the time."""
    context = current_context()
    note(self, "start", token=context.fencing_token, deliveries=context.deliveries)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
        context.beat()
    note(self, "end")


@app.task(name="pgmq.patient", bind=True, base=LeasedTask, lease_extension=60)
def patient(self: Task[Any, Any], seconds: float) -> None:
    """Work for some seconds under a lease that outlives an outage."""
    note(self, "start")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
        current_context().beat()
    note(self, "end")


@app.task(
    name="pgmq.late",
    bind=True,
    base=LeasedTask,
    lease_extension=3,
    lease_watchdog_threshold=30,
)
def late(self: Task[Any, Any], seconds: float) -> None:
    """Work for some seconds without a beat."""
    note(self, "start")
    time.sleep(seconds)
    note(self, "end")


@app.task(name="pgmq.again", bind=True, base=LeasedTask, lease_extension=10, max_retries=2)
def again(self: Task[Any, Any]) -> None:
    """Retry at once, twice."""
    context = current_context()
    note(self, "start", token=context.fencing_token)
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    note(self, "end")


@app.task(name="pgmq.die", bind=True, base=LeasedTask, lease_extension=4)
def die(self: Task[Any, Any]) -> None:
    """Kill the process."""
    note(self, "start")
    os.kill(os.getpid(), signal.SIGKILL)
