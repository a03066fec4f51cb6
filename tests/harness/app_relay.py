"""A worker's app with leased tasks: ``celery -A harness.app_relay worker``.

Each task notes in the ledger when it starts, ends, or is told that its lease is lost, and which
delivery it is.
"""

from __future__ import annotations

import ctypes
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_lease import LeasedTask, LeaseLost, ToolContext
from celery_lease.board import standstill
from celery_lease.task.current import active_context
from harness.app import note
from harness.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Task

app = Setup.from_env().app("relay")


@contextmanager
def noted(task: Task[Any, Any], context: ToolContext, **facts: Any) -> Iterator[None]:
    """Note start and end of a run, or its loss."""
    facts = {"deliveries": context.deliveries, "token": context.fencing_token, **facts}
    note(task, "start", **facts)
    try:
        yield
    except LeaseLost as exc:
        note(task, "lost", reason=str(exc), **facts)
        raise
    note(task, "end", **facts)


def beat_for(context: ToolContext, seconds: float, every: float = 0.1) -> None:
    """Beat every so many seconds for some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(every)
        context.beat()


@app.task(name="relay.beats", base=LeasedTask, bind=True)
def beats(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> None:
    """Work and beat for some seconds."""
    with noted(self, context):
        beat_for(context, seconds)


@app.task(name="relay.crowd", base=LeasedTask, bind=True)
def crowd(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> None:
    """Beat from four threads at once for some seconds, and not from the task's own."""
    with noted(self, context):
        crew = [threading.Thread(target=beat_for, args=(context, seconds, 0.01)) for _ in range(4)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        context.beat()


@app.task(name="relay.stuck", base=LeasedTask, bind=True)
def stuck(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> None:
    """Say nothing for some seconds at the first delivery, then beat; later ones just pass."""
    with noted(self, context):
        if context.deliveries == 1:
            time.sleep(seconds)
        context.beat()


@app.task(name="relay.silent", base=LeasedTask, bind=True)
def silent(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> None:
    """Work for some seconds without a beat at the first delivery, and return; later ones pass."""
    with noted(self, context):
        if context.deliveries == 1:
            time.sleep(seconds)


@app.task(name="relay.once", base=LeasedTask, bind=True)
def once(self: Task[Any, Any], seconds: float, first: bool, *, context: ToolContext) -> None:
    """Work for some seconds with one beat, at their beginning or at their end."""
    with noted(self, context):
        time.sleep(0 if first else seconds)
        context.beat()
        time.sleep(seconds if first else 0)


@app.task(name="relay.limited", base=LeasedTask, bind=True, rate_limit="10/m")
def limited(self: Task[Any, Any], *, context: ToolContext) -> None:
    """Do nothing, every six seconds at most."""
    with noted(self, context):
        pass


def cover(self: Task[Any, Any], seconds: float = 0.0) -> None:
    """Take some seconds; note whether that is under a lease, in a task that takes no context."""
    context = active_context()
    facts = {"deliveries": context.deliveries if context else 1}
    note(self, "start", leased=bool(context and context.leased), **facts)
    time.sleep(seconds)
    note(self, "end", **facts)


app.task(name="relay.covered_late", bind=True, acks_late=True)(cover)
app.task(name="relay.covered_early", bind=True)(cover)


@app.task(name="relay.short", base=LeasedTask, bind=True)
def short(self: Task[Any, Any], *, context: ToolContext) -> None:
    """Do nothing."""
    with noted(self, context):
        pass


@app.task(name="relay.careless", base=LeasedTask, bind=True, lease_on_lost="continue")
def careless(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> None:
    """As ``stuck``, and goes on when its lease is lost."""
    with noted(self, context):
        if context.deliveries == 1:
            time.sleep(seconds)
        context.beat()


@app.task(name="relay.hog", base=LeasedTask, bind=True, lease_mode="daemon")
def hog(self: Task[Any, Any], seconds: int, *, context: ToolContext) -> None:
    """Keep the interpreter's lock for some seconds, as badly written C code does.

    While the keeper rests: of a look that takes long nobody knows whose fault that is.
    """
    with noted(self, context):
        while not context._board.numbers[standstill.DUE]:
            time.sleep(0.001)
        ctypes.PyDLL(None).sleep(seconds)


@app.task(name="relay.gated", base=LeasedTask, bind=True)
def gated(self: Task[Any, Any], gate: str, *, context: ToolContext) -> None:
    """Work without a beat until the test opens the gate."""
    with noted(self, context):
        while not Path(gate).exists():
            time.sleep(5.0)
