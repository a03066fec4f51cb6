"""A worker's app with leased tasks for every broker: ``celery -A harness.app_leased worker``."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery.exceptions import Reject

from celery_lease import LeasedTask, LeaseLost, current_context
from harness import ledger
from harness.app import app, note
from harness.draining import listen
from harness.ledger import Ledger
from harness.rabbitmq import with_queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Task

__all__ = ["app"]

#: Seconds that a beat keeps a message, in tasks that do not say otherwise.
EXTENSION = 4

with_queue(app)
listen()  # Celery has no remote control on SQS, nor kombu with a pgmq without topics


def begin(task: Task[Any, Any]) -> int:
    """Record the start of a run, and return how many there have been, this one included."""
    context = current_context()
    note(task, "start", token=context.fencing_token, deliveries=context.deliveries)
    return Ledger(Path(os.environ[ledger.ENV])).count("start", task.request.id)


def beat_for(seconds: float) -> None:
    """Work for some seconds, beating all the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
        current_context().beat()


@app.task(name="any.work", bind=True, base=LeasedTask, lease_extension=EXTENSION)
def work(self: Task[Any, Any], seconds: float, again: float | None = None) -> None:
    """Work for some seconds, in later runs for others, beating all the time."""
    run = begin(self)
    try:
        beat_for(seconds if run == 1 or again is None else again)
    except LeaseLost as exc:
        note(self, "told", reason=exc.reason)
        raise
    note(self, "end")


@app.task(name="any.patient", bind=True, base=LeasedTask, lease_extension=60)
def patient(self: Task[Any, Any], seconds: float) -> None:
    """Work for some seconds under a lease that outlives an outage."""
    begin(self)
    beat_for(seconds)
    note(self, "end")


@app.task(
    name="any.late",
    bind=True,
    base=LeasedTask,
    lease_extension=3,
    lease_watchdog_threshold=30,
)
def late(self: Task[Any, Any], seconds: float) -> None:
    """Work for some seconds without a beat, and without being ended for it."""
    begin(self)
    time.sleep(seconds)
    note(self, "end")


@app.task(name="any.silent", bind=True, base=LeasedTask, lease_extension=EXTENSION)
def silent(self: Task[Any, Any], seconds: float) -> None:
    """Say nothing for some seconds, but only in the first run."""
    if begin(self) == 1:
        time.sleep(seconds)
    note(self, "end")


@app.task(
    name="any.stubborn",
    bind=True,
    base=LeasedTask,
    lease_extension=EXTENSION,
    lease_on_lost="continue",
)
def stubborn(self: Task[Any, Any], *seconds: float) -> None:
    """Work for some seconds, others in each run, whatever becomes of the lease."""
    run = begin(self)
    beat_for(of_run(seconds, run))
    note(self, "end", run=run)


def of_run(values: Sequence[float], run: int) -> float:
    """Return a run's value; the last one is all later runs' too."""
    return values[min(run, len(values)) - 1]


@app.task(name="any.plain", bind=True, acks_late=True)
def plain(self: Task[Any, Any], *seconds: float) -> None:
    """Take some seconds without a lease, others in each run."""
    note(self, "start")
    run = Ledger(Path(os.environ[ledger.ENV])).count("start", self.request.id)
    time.sleep(of_run(seconds, run))
    note(self, "end")


@app.task(name="any.covered_late", bind=True, acks_late=True, lease_extension=EXTENSION)
def covered_late(self: Task[Any, Any], seconds: float) -> None:
    """Take some seconds, under a lease where ``lease_tasks`` says so."""
    note(self, "start")
    time.sleep(seconds)
    note(self, "end")


@app.task(name="any.covered_early", bind=True, lease_extension=EXTENSION)
def covered_early(self: Task[Any, Any], seconds: float) -> None:
    """As :func:`covered_late`, acknowledged early."""
    note(self, "start")
    time.sleep(seconds)
    note(self, "end")


@app.task(name="any.again", bind=True, base=LeasedTask, lease_extension=10, max_retries=2)
def again(self: Task[Any, Any]) -> None:
    """Retry at once, twice."""
    begin(self)
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    note(self, "end")


@app.task(
    name="any.die",
    bind=True,
    base=LeasedTask,
    lease_extension=EXTENSION,
    lease_max_deliveries=2,
)
def die(self: Task[Any, Any]) -> None:
    """Kill the process."""
    begin(self)
    current_context().beat(note="about to die")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="any.refuse", bind=True, base=LeasedTask, lease_extension=EXTENSION)
def refuse(self: Task[Any, Any]) -> None:
    """Reject the message for good."""
    begin(self)
    raise Reject("for good", requeue=False)
