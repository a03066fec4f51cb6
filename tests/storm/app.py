"""The storm's tasks: ``celery -A storm.app worker``. Each run writes its start and its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery_lease import LeasedTask
from harness.app import app, note

if TYPE_CHECKING:
    from celery import Task

    from celery_lease import ToolContext


@app.task(name="storm.drop", base=LeasedTask, bind=True, ignore_result=True)
def drop(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> None:
    """Work for some seconds, beating."""
    note(self, "start", deliveries=context.deliveries)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(0.05, left))
        context.beat()
    note(self, "end")
