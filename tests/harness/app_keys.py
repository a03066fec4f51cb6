"""Tasks with exclusive keys: ``celery -A harness.app_keys worker``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_lease import LeasedTask, LeaseLost, current_context
from harness.app import app, note

if TYPE_CHECKING:
    from celery import Task

#: Seconds of a lease.
EXTENSION = 3.0


class Told(LeasedTask):
    """Records what its hooks are told."""

    abstract = True

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        del args, kwargs, einfo
        note(self, "on_failure", error=type(exc).__name__, of=task_id)


@app.task(name="keyed.work", bind=True, base=Told, lease_key="k:{key}", lease_extension=EXTENSION)
def work(self: Task[Any, Any], key: str, gate: str = "") -> str:
    """Beat until the test opens the gate, if there is one."""
    note(self, "start", key=key)
    try:
        while gate and not Path(gate).exists():
            time.sleep(0.02)
            current_context().beat()
        current_context().beat()
    except LeaseLost:
        note(self, "lost", key=key)
        raise
    note(self, "end", key=key)
    return key


@app.task(name="keyed.free", bind=True, base=LeasedTask, lease_extension=EXTENSION)
def free(self: Task[Any, Any]) -> None:
    """Need no key."""
    note(self, "start")


@app.task(name="keyed.again", bind=True, base=Told, lease_key="k:{key}", max_retries=1)
def again(self: Task[Any, Any], key: str) -> int:
    """Retry once, at once."""
    note(self, "start", key=key)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return self.request.retries
