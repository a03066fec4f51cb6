"""A worker's app with leased tasks for SQS: ``celery -A harness.app_sqs worker``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery_lease import current_context
from celery_lease.task import LeasedTask
from harness.app import app, note

if TYPE_CHECKING:
    from celery import Task

__all__ = ["app"]


@app.task(name="sqs.work", bind=True, base=LeasedTask, lease_extension=4)
def work(self: Task[Any, Any], seconds: float) -> None:
    """Work for some seconds, beating all the time."""
    context = current_context()
    note(self, "start", token=context.fencing_token, deliveries=context.deliveries)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
        context.beat()
    note(self, "end")


@app.task(name="sqs.late", bind=True, base=LeasedTask, lease_extension=4)
def late(self: Task[Any, Any], seconds: float) -> None:
    """Work for some seconds without a beat."""
    note(self, "start")
    time.sleep(seconds)
    note(self, "end")


@app.task(name="sqs.refuse", bind=True, base=LeasedTask, lease_extension=4)
def refuse(self: Task[Any, Any]) -> None:
    """Reject the message for good."""
    from celery.exceptions import Reject

    note(self, "refuse")
    raise Reject("for good", requeue=False)
