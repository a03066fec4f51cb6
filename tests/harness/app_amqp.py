"""A worker's app with leased tasks for RabbitMQ: ``celery -A harness.app_amqp worker``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery_lease import LeaseLost, current_context
from celery_lease.task import LeasedTask
from harness.app import app, note
from harness.rabbitmq import with_queue

if TYPE_CHECKING:
    from celery import Task

__all__ = ["app"]

with_queue(app)


@app.task(name="amqp.work", bind=True, base=LeasedTask, lease_extension=4)
def work(self: Task[Any, Any], seconds: float, again: float | None = None) -> None:
    """Work for some seconds, at later deliveries for others, beating all the time."""
    context = current_context()
    note(self, "start", token=context.fencing_token, deliveries=context.deliveries)
    if again is not None and context.deliveries > 1:
        seconds = again
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            time.sleep(0.05)
            context.beat()
    except LeaseLost as exc:
        note(self, "told", reason=exc.reason)
        raise
    note(self, "end")


@app.task(name="amqp.stuck_once", bind=True, base=LeasedTask, lease_extension=4)
def stuck_once(self: Task[Any, Any], seconds: float) -> None:
    """Say nothing for some seconds, but only at the first delivery."""
    context = current_context()
    note(self, "start", token=context.fencing_token, deliveries=context.deliveries)
    if context.deliveries == 1:
        time.sleep(seconds)
    note(self, "end", deliveries=context.deliveries)


@app.task(
    name="amqp.unimpressed",
    bind=True,
    base=LeasedTask,
    lease_extension=4,
    lease_on_lost="continue",
)
def unimpressed(self: Task[Any, Any], seconds: float) -> None:
    """Beat for some seconds whatever becomes of the lease, but only at the first delivery."""
    context = current_context()
    note(self, "start", deliveries=context.deliveries)
    end = time.monotonic() + seconds
    while time.monotonic() < end and context.deliveries == 1:
        time.sleep(0.05)
        context.beat()
    note(self, "end", deliveries=context.deliveries)
