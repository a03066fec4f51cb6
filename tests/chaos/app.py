"""The task under fire: ``celery -A chaos.app worker``. Its effects are fenced by their store."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from celery_lease import LeasedTask, LeaseLost
from chaos.store import ENV, Store
from harness.app import app, note

if TYPE_CHECKING:
    from celery import Task

    from celery_lease import ToolContext

#: Seconds between two beats.
STEP = 0.1


@app.task(name="chaos.work", base=LeasedTask, bind=True, ignore_result=True)
def work(self: Task[Any, Any], steps: int, *, context: ToolContext) -> None:
    """Take some steps: one fenced write and one beat each.

    The write comes first: a run that was stopped and goes on writes once before it can know.
    """
    token, task_id = context.fencing_token or 0, self.request.id or ""
    store = Store(os.environ[ENV])
    held_at = time.time()
    context.beat()  # the lease was held then: it may have been stopped since it was let in
    note(self, "start", token=token, wall=held_at)
    try:
        for step in range(steps):
            time.sleep(STEP)
            store.write(task_id, token, f"step {step}", held_at)
            asked_at = time.time()
            context.beat()
            held_at = asked_at
    except LeaseLost:
        note(self, "lost", token=token, wall=time.time())
        raise
    store.write(task_id, token, "done", held_at)
    note(self, "end", token=token, wall=time.time())
