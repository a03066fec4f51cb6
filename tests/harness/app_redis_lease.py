"""A leased task and a plain one on Redis: ``celery -A harness.app_redis_lease worker``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_lease import LeasedTask, current_context
from harness.app import app, note

if TYPE_CHECKING:
    from celery import Task


@app.task(name="leased.beating", bind=True, base=LeasedTask, lease_extension=4)
def beating(self: Task[Any, Any], gate: str) -> None:
    """Beat until the test opens the gate."""
    context = current_context()
    note(self, "start", token=context.fencing_token, deliveries=context.deliveries)
    while not Path(gate).exists():
        time.sleep(0.05)
        context.beat()
    note(self, "end", token=context.fencing_token)
