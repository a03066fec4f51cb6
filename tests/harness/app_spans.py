"""Tasks whose hooks and receivers take longer than their lease: ``celery -A harness.app_spans``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.exceptions import Ignore

from celery_lease import LeasedTask, ToolContext, current_context
from harness.app import app, note
from harness.rabbitmq import with_queue

if TYPE_CHECKING:
    from celery import Task

__all__ = ["app"]

with_queue(app)


def hook(task: Task[Any, Any], name: str) -> None:
    """Be slow if this is the hook that is to be: silent, or beating all the time."""
    facts = task.request.kwargs or {}
    if facts.get("slow") != name:
        return
    context = current_context()
    note(task, "hook", name=name, id=context.task_id, leased=context.leased)
    end = time.monotonic() + facts["seconds"]
    while time.monotonic() < end:
        if facts.get("beats"):
            context.beat()
        time.sleep(0.05)
    note(task, "hook end", name=name)


class Hooked(LeasedTask):
    """Has every hook of a task's class."""

    abstract = True

    def before_start(self, *_: Any) -> None:
        hook(self, "before_start")

    def on_success(self, *_: Any) -> None:
        hook(self, "on_success")

    def on_failure(self, *_: Any) -> None:
        hook(self, "on_failure")

    def on_retry(self, *_: Any) -> None:
        hook(self, "on_retry")

    def after_return(self, *_: Any) -> None:
        hook(self, "after_return")


@app.task(name="spans.work", bind=True, base=Hooked, max_retries=1)
def work(self: Task[Any, Any], /, how: str = "return", *, context: ToolContext, **_: Any) -> str:
    """Come to an end of the kind asked for."""
    note(self, "start", deliveries=context.deliveries)
    if how == "raise":
        raise ValueError("as asked")
    if how == "ignore":
        raise Ignore
    if how == "retry" and not self.request.retries:
        raise self.retry(countdown=0)
    return "done"


def wait_for(gate: str, task: Task[Any, Any], context: ToolContext) -> None:
    """Beat until the gate opens."""
    note(task, "start", deliveries=context.deliveries)
    while not Path(gate).exists():
        time.sleep(0.05)
        context.beat()
    note(task, "end")


@app.task(name="spans.gated", bind=True, base=LeasedTask, max_retries=1)
def gated(
    self: Task[Any, Any], /, gate: str, how: str = "return", *, context: ToolContext, **_: Any
) -> str:
    """Work until the gate opens, beating all the time, and come to an end of the kind asked for."""
    wait_for(gate, self, context)
    if how == "raise":
        raise ValueError("as asked")
    if how == "retry" and not self.request.retries:
        raise self.retry(countdown=0)
    return "done"


@app.task(name="spans.interruptible", bind=True, base=LeasedTask, lease_interruptible=True)
def interruptible(self: Task[Any, Any], /, gate: str, *, context: ToolContext) -> str:
    """Do the same, and hand over if the worker stops before."""
    wait_for(gate, self, context)
    return "done"


@app.task(name="spans.unstorable", bind=True, base=LeasedTask)
def unstorable(self: Task[Any, Any], *, context: ToolContext) -> object:
    """Return what has no JSON."""
    note(self, "start", deliveries=context.deliveries)
    return object()


@app.task(name="spans.total", bind=True)
def total(self: Task[Any, Any], results: list[str]) -> int:
    """Count what a chord's header returned."""
    note(self, "total")
    return len(results)


def receive(name: str) -> None:
    """Make the receiver of a signal a hook like the others."""

    def receiver(sender: Any = None, **_: Any) -> None:
        if sender.name == work.name:
            hook(sender, name)

    getattr(signals, name).connect(receiver, weak=False)


for each in ("task_prerun", "task_postrun", "task_success", "task_failure", "task_retry"):
    receive(each)
