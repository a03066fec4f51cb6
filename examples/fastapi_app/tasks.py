"""The Celery app, and a task that stores how far it is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_lease import ToolContext, leased_task

if TYPE_CHECKING:
    from celery import Task

app = Celery("examples.fastapi_app.tasks")
app.conf.update(
    broker_url="redis://127.0.0.1:6379/0",
    result_backend="redis://127.0.0.1:6379/0",
    task_default_queue="fastapi_app",
    broker_connection_retry_on_startup=True,
    lease_extension=120,
)
app.set_default()

#: Seconds between two states stored: beats cost nothing, a state is a call to the result backend.
STORE_EVERY = 0.2


@leased_task(bind=True)
def report(self: Task[Any, Any], rows: int, *, context: ToolContext) -> int:
    """Add up some rows that take 10 ms each."""
    total, stored = 0, 0.0
    for done, row in enumerate(context.track(range(rows))):
        if time.monotonic() - stored > STORE_EVERY:
            stored = time.monotonic()
            # Stored by the holder of the lease only: who has lost it gets LeaseLost here.
            self.update_state(state="PROGRESS", meta={"done": done, "rows": rows})
        time.sleep(0.01)
        total += row
    return total
