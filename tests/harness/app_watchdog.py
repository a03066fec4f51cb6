"""A worker's app with tasks that say nothing: ``celery -A harness.app_watchdog worker``.

The first delivery of each falls silent; later ones pass.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_task_logger

from celery_lease import LeasedTask, ToolContext
from harness.app import note
from harness.setup import Setup

if TYPE_CHECKING:
    from celery import Task

app = Setup.from_env().app("watchdog")
logger = get_task_logger(__name__)


def burn_the_processor(seconds: float) -> None:
    """Compute, without any call that waits."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def wait_in_a_call(seconds: float) -> None:
    """Wait in one call."""
    time.sleep(seconds)


def stop_myself(_seconds: float) -> None:
    """Stop this process, as a debugger or an operator may."""
    os.kill(os.getpid(), signal.SIGSTOP)


WAYS = {"busy": burn_the_processor, "blocked": wait_in_a_call, "stopped": stop_myself}


def fall_silent(task: Task[Any, Any], context: ToolContext, way: str, seconds: float) -> int:
    """Do not beat for some seconds at the first delivery."""
    note(task, "start", deliveries=context.deliveries)
    if context.deliveries == 1:
        WAYS[way](seconds)
    note(task, "end", deliveries=context.deliveries)
    return context.deliveries


@app.task(name="watchdog.silent", base=LeasedTask, bind=True)
def silent(self: Task[Any, Any], way: str, seconds: float, *, context: ToolContext) -> int:
    """Fall silent in some way."""
    return fall_silent(self, context, way, seconds)


@app.task(name="watchdog.watched", base=LeasedTask, bind=True, lease_watchdog_threshold=1.5)
def watched(self: Task[Any, Any], way: str, seconds: float, *, context: ToolContext) -> int:
    """As ``silent``, with a threshold far below any lease."""
    return fall_silent(self, context, way, seconds)


@app.task(name="watchdog.careless", base=LeasedTask, bind=True, lease_on_lost="continue")
def careless(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> int:
    """As ``silent``, going on whatever becomes of the lease."""
    return fall_silent(self, context, "blocked", seconds)


@app.task(name="watchdog.daemon", base=LeasedTask, bind=True, lease_mode="daemon")
def daemon(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> int:
    """As ``silent``, its process being proof enough."""
    return fall_silent(self, context, "blocked", seconds)


@app.task(name="watchdog.observed", base=LeasedTask, bind=True, lease_mode="observe")
def observed(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> int:
    """As ``silent``, only observed."""
    return fall_silent(self, context, "blocked", seconds)


@app.task(name="watchdog.beats", base=LeasedTask, bind=True)
def beats(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> int:
    """Work and beat for some seconds."""
    note(self, "start", deliveries=context.deliveries)
    logger.info("work of %g s begins", seconds)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
        context.beat()
    note(self, "end", deliveries=context.deliveries)
    return os.getpid()


@app.task(name="watchdog.command", base=LeasedTask, bind=True)
def command(self: Task[Any, Any], line: str, *, context: ToolContext) -> int:
    """Run a command in a shell, at the first delivery."""
    note(self, "start", deliveries=context.deliveries)
    if context.deliveries == 1:
        context.run(line, shell=True)
    note(self, "end", deliveries=context.deliveries)
    return context.deliveries
