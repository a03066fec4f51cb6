"""A worker's app to look at and to cancel: ``celery -A harness.app_views worker``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery_lease import LeasedTask, ShutdownRequested, TaskCancelled, ToolContext
from harness.app import note
from harness.ledger import record
from harness.setup import Setup

if TYPE_CHECKING:
    from celery import Task

app = Setup.from_env().app("views")


@app.task(name="views.work", base=LeasedTask, bind=True)
def work(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> str:
    """Work for some seconds, say how far it is, and clean up when cancelled."""
    note(self, "start", deliveries=context.deliveries)
    end = time.monotonic() + seconds
    try:
        while (left := end - time.monotonic()) > 0:
            context.beat(round(seconds - left, 1), seconds, "working")
            time.sleep(0.05)
    except TaskCancelled:
        note(self, "cleaned", cancelled=context.cancelled)
        raise
    note(self, "end")
    return "done"


class Locking(LeasedTask):
    """A task that holds a lock of its own until a hook is called, as those of celery-once do."""

    def on_failure(self, exc: Exception, task_id: str, *_: Any) -> None:
        """Release it as celery-singleton does."""
        record("on_failure", task_id, error=type(exc).__name__)

    def after_return(self, *arguments: Any) -> None:
        """Release it as celery-once does."""
        status, _, task_id, *_ = arguments
        record("after_return", task_id, status=status)


@app.task(name="views.locked", base=Locking, bind=True)
def locked(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> None:
    """Hold the lock for some seconds."""
    note(self, "start", deliveries=context.deliveries)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        context.beat()
        time.sleep(0.05)


class Failing(LeasedTask):
    """A task whose hooks fail, too."""

    def on_failure(self, *_: Any) -> None:
        """Fail."""
        raise ValueError("no lock")

    def after_return(self, *_: Any) -> None:
        """Fail."""
        raise ValueError("no lock")


@app.task(name="views.limited", base=Failing, bind=True, time_limit=2)
def limited(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> None:
    """Work for longer than it may."""
    note(self, "start", deliveries=context.deliveries)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        context.beat()
        time.sleep(0.05)


@app.task(name="views.silent", base=Locking, bind=True, lease_max_deliveries=1)
def silent(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> None:
    """Hold the lock, and lose the lease."""
    note(self, "start", deliveries=context.deliveries)
    time.sleep(seconds)


@app.task(name="views.retries", base=LeasedTask, bind=True, max_retries=3)
def retries(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> str:
    """Work, and try again whatever happens."""
    note(self, "start", deliveries=context.deliveries)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            context.beat()
            time.sleep(0.05)
    except Exception as exc:
        raise self.retry(exc=exc, countdown=0) from exc
    return "done"


@app.task(name="views.stubborn", base=LeasedTask, bind=True)
def stubborn(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> str:
    """Work, and return what there is when cancelled."""
    note(self, "start", deliveries=context.deliveries)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            context.beat()
            time.sleep(0.05)
    except TaskCancelled:
        return "in part"
    return "done"


@app.task(name="views.fails", base=LeasedTask, bind=True)
def fails(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> None:
    """Say how far it is, again and again, and fail."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        context.beat(seconds - left, seconds)
        time.sleep(0.002)
    raise ValueError(self.name)


@app.task(name="views.moves", base=LeasedTask, bind=True, lease_interruptible=True)
def moves(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> str:
    """Work until handed over, and end soon in the next run."""
    note(self, "start", deliveries=context.deliveries, restored=context.restored)
    end = time.monotonic() + (0 if context.restored else seconds)
    try:
        while time.monotonic() < end:
            context.beat()
            time.sleep(0.05)
    except ShutdownRequested:
        note(self, "told", shutting_down=context.shutting_down)
        context.checkpoint("half")
        raise
    note(self, "end")
    return "done"


@app.task(name="views.deaf", base=LeasedTask, bind=True, lease_mode="daemon")
def deaf(self: Task[Any, Any], seconds: float) -> None:
    """Work without a beat."""
    note(self, "start")
    time.sleep(seconds)
    note(self, "end")


@app.task(name="views.plain", bind=True)
def plain(self: Task[Any, Any], seconds: float) -> None:
    """Work without a lease."""
    note(self, "start")
    time.sleep(seconds)
    note(self, "end")


@app.task(name="views.after", bind=True)
def after(self: Task[Any, Any], *_: Any) -> None:
    """Say that a callback was called."""
    note(self, "after")
