"""Tasks whose first run stalls without a beat until its lease is somebody else's, and then acts.

Worker: ``celery -A harness.app_fenced worker``.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery.exceptions import SoftTimeLimitExceeded

from celery_lease import LeasedTask, ToolContext
from harness.ledger import record
from harness.setup import Setup

if TYPE_CHECKING:
    from celery import Celery, Task


def register(app: Celery) -> Celery:
    """Give *app* all tasks."""

    def stall(self: Task[Any, Any], how: str, gate: str, *, context: ToolContext) -> Any:
        facts: dict[str, Any] = {"how": how, "token": context.fencing_token}
        record("start", self.request.id or "", **facts)
        if context.deliveries > 1 or self.request.retries:
            return "second"
        while not Path(gate).exists():
            time.sleep(0.02)
        record("late", self.request.id or "", **facts)
        return act(self, how, context)

    for name, options in VARIANTS.items():
        make: Any = app.task(base=LeasedTask, bind=True, shared=False, name=name, **options)
        make(stall)

    @app.task(name="linked", shared=False)
    def linked(result: Any, mark: str) -> None:
        record("linked", mark, result=result)

    @app.task(name="errback", shared=False)
    def errback(_request: Any, exc: Any, _traceback: Any, mark: str) -> None:
        record("errback", mark, exc=repr(exc))

    @app.task(name="body", shared=False)
    def body(results: list[str]) -> list[str]:
        record("body", results=results)
        return results

    @app.task(base=LeasedTask, name="beating", ignore_result=True, shared=False)
    def beating(*, context: ToolContext) -> None:
        for _ in context.track(range(1000)):
            pass
        record("beaten")

    return app


#: Tasks by name, with what is special about each.
VARIANTS: dict[str, dict[str, Any]] = {
    "stall": {"default_retry_delay": 0},
    "stall_auto": {"autoretry_for": (Exception,), "retry_kwargs": {"countdown": 0}},
    "stall_on": {"lease_on_lost": "continue"},
    "stall_hard": {"time_limit": 7},
}


def act(task: Task[Any, Any], how: str, context: ToolContext) -> Any:
    """Do what a task may do at its end."""
    match how:
        case "raise":
            raise ValueError("late")
        case "retry":
            raise task.retry(exc=ValueError("late"))
        case "replace":
            raise task.replace(task.app.signature("linked", ("replaced", task.request.id)))
        case "update_state":
            task.update_state(state="LATE")
        case "beat":
            context.beat()
        case "swallow":
            with contextlib.suppress(Exception):
                context.beat()
        case "soft":
            raise SoftTimeLimitExceeded
        case "hang":
            time.sleep(60)
    return "first"


app = register(Setup.from_env().app())
