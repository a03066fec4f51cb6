"""A worker's app for shutdown: ``celery -A harness.app_shutdown worker``."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from celery.signals import worker_init
from celery.worker import state

from celery_lease import LeasedTask, ShutdownRequested, ToolContext
from harness.app import note
from harness.setup import Setup

if TYPE_CHECKING:
    from celery import Task

app = Setup.from_env().app("shutdown")

logger = logging.getLogger(__name__)

#: A variable that has the main loop hear of no start of a task before it is asked to stop.
HEARS_LATE = "HARNESS_HEARS_LATE"
#: What it logs when there is one.
SENT = "sent to a process"


@worker_init.connect
def hear_late(sender: Any, **_: Any) -> None:
    """Stand still once a process has got a part of a job, as on a busy machine."""
    look = state.maybe_shutdown

    def wait_and_look() -> None:
        jobs = [] if sender.pool._pool is None else sender.pool._pool._cache.values()
        if any(each._write_to and not each.accepted() for each in jobs):
            logger.info(SENT)
            while state.should_stop is None:
                time.sleep(0.01)
        look()

    if HEARS_LATE in os.environ:
        state.maybe_shutdown = wait_and_look


@app.task(name="shutdown.beats", base=LeasedTask, bind=True)
def beats(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> str:
    """Work and beat for some seconds."""
    note(self, "start", deliveries=context.deliveries)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            time.sleep(0.05)
            context.beat()
    except ShutdownRequested:
        note(self, "told")
        raise
    note(self, "end")
    return context.worker_id


@app.task(
    name="shutdown.patient",
    base=LeasedTask,
    bind=True,
    lease_extension=25,
    lease_shutdown_timeout=20,
)
def patient(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> str:
    """Work like ``beats``, with more time to end."""
    note(self, "start", deliveries=context.deliveries)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
        context.beat()
    note(self, "end")
    return context.worker_id


@app.task(name="shutdown.deaf", base=LeasedTask, bind=True, lease_mode="daemon")
def deaf(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> str:
    """Work without a beat, so that nothing can be told; short from the second delivery on."""
    note(self, "start", deliveries=context.deliveries)
    time.sleep(seconds if context.deliveries == 1 else 0.1)
    note(self, "end")
    return context.worker_id


@app.task(name="shutdown.steps", base=LeasedTask, bind=True, lease_interruptible=True)
def steps(self: Task[Any, Any], count: int, *, context: ToolContext) -> list[int]:
    """Do ``count`` steps of a tenth of a second, going on where the last delivery stopped."""
    done: list[int] = context.restored or []
    note(self, "start", deliveries=context.deliveries, restored=len(done))
    try:
        while len(done) < count:
            time.sleep(0.1)
            done = [*done, len(done)]
            note(self, "step", number=done[-1])
            context.checkpoint(done)
    except ShutdownRequested:
        note(self, "told", shutting_down=context.shutting_down)
        raise
    note(self, "end")
    return done


@app.task(name="shutdown.limited", base=LeasedTask, bind=True, rate_limit="1/h")
def limited(self: Task[Any, Any], *, context: ToolContext) -> None:
    """Run once an hour."""
    note(self, "start", deliveries=context.deliveries)


@app.task(name="shutdown.plain", bind=True)
def plain(self: Task[Any, Any], seconds: float) -> float:
    """A task without a lease."""
    note(self, "start")
    time.sleep(seconds)
    note(self, "end")
    return seconds
