"""Twins: the same tasks plain and leased, for side-by-side comparison.

Worker: ``celery -A harness.app_features worker``. A plain twin is a late-ack task that goes back
when its process dies, which is what a leased one is by nature.
"""

# mypy: disable-error-code="untyped-decorator, call-overload, misc, call-arg"

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Task, chain
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_lease import LeasedTask, ToolContext
from celery_lease.task.current import active_context
from harness import ledger
from harness.ledger import record
from harness.setup import Setup

if TYPE_CHECKING:
    from celery import Celery

KINDS = ("plain", "leased")


class AnyTask(Task[Any, Any] if TYPE_CHECKING else Task):
    """The plain twins' base class."""

    abstract = True


def register(app: Celery) -> Celery:
    """Give *app* all tasks."""
    for kind, base in zip(KINDS, (AnyTask, LeasedTask), strict=True):
        _register_outcomes(app, kind, base)
        _register_canvas(app, kind, base)
        _register_long(app, kind, base)
    _register_leased_only(app)
    return app


def _maker(app: Celery, kind: str, base: type) -> Any:
    def make(function: Any = None, **options: Any) -> Any:
        if function is None:
            return partial(make, **options)
        name = f"{kind}.{function.__name__}"
        late = {"acks_late": True, "reject_on_worker_lost": True}
        return app.task(base=base, name=name, shared=False, **late, **options)(function)

    return make


def beat() -> None:
    """Beat where there is something to beat for."""
    context = active_context()
    if context is not None:
        context.beat()


def first_time(task: Task[Any, Any]) -> bool:
    """Tell whether a task id runs for the first time, over all processes."""
    mark = Path(f"{os.environ[ledger.ENV]}.{task.request.id}")
    if mark.exists():
        return False
    mark.touch()
    return True


def _register_outcomes(app: Celery, kind: str, base: type) -> None:  # noqa: C901
    task = _maker(app, kind, base)

    @task
    def add(x: int, y: int) -> int:
        return x + y

    @task
    def fail(text: str) -> None:
        raise ValueError(text)

    @task(bind=True, max_retries=3, default_retry_delay=0)
    def retry(self: Task[Any, Any], times: int, countdown: float | None = None) -> int:
        if self.request.retries < times:
            raise self.retry(exc=ValueError("again"), countdown=countdown)
        return self.request.retries

    @task(bind=True, autoretry_for=(ValueError,), retry_kwargs={"max_retries": 2, "countdown": 0})
    def autoretry(self: Task[Any, Any], times: int) -> int:
        if self.request.retries < times:
            raise ValueError("again")
        return self.request.retries

    @task
    def reject() -> None:
        raise Reject("no", requeue=False)

    @task(bind=True)
    def reject_once(self: Task[Any, Any]) -> str:
        if first_time(self):
            raise Reject("later", requeue=True)
        return "second"

    @task(bind=True)
    def ignore(self: Task[Any, Any]) -> None:
        self.update_state(state="MINE", meta={"done": 1})
        raise Ignore

    @task(ignore_result=True)
    def silent(x: int) -> int:
        record("silent")
        return x

    @task(bind=True)
    def die_once(self: Task[Any, Any]) -> str:
        if first_time(self):
            os.kill(os.getpid(), signal.SIGKILL)
        return "second"

    @task(track_started=True, rate_limit="50/s")
    def limited(x: int) -> int:
        return x


def _register_canvas(app: Celery, kind: str, base: type) -> None:
    task = _maker(app, kind, base)

    @task
    def total(numbers: list[int]) -> int:
        record("total")
        return sum(numbers)

    @task
    def linked(result: Any, mark: str) -> None:
        record("linked", mark, result=result)

    @task
    def errback(_request: Any, exc: Any, _traceback: Any, mark: str = "") -> None:
        record("errback", mark, exc=type(exc).__name__)

    @task(bind=True)
    def replace(self: Task[Any, Any], x: int) -> Any:
        add = self.app.signature(f"{kind}.add")
        return self.replace(chain(add.clone((x, 1)), add.clone((1,))))


def _register_long(app: Celery, kind: str, base: type) -> None:
    task = _maker(app, kind, base)

    @task(bind=True)
    def long(self: Task[Any, Any], seconds: float = 30.0) -> str:
        record("start", self.request.id or "")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            beat()
            time.sleep(0.05)
        return "end"

    @task(soft_time_limit=1, time_limit=20)
    def soft(tidy: str) -> str:
        try:
            end = time.monotonic() + 10
            while time.monotonic() < end:  # the signal comes in the middle of a beat
                beat()
        except SoftTimeLimitExceeded:
            if not tidy:
                raise
            return tidy
        return "end"

    @task(time_limit=1)
    def hard() -> None:
        for _ in range(400):
            beat()
            time.sleep(0.05)


def _register_leased_only(app: Celery) -> None:
    class Base(LeasedTask):
        abstract = True

        def run(self, x: int, *, context: ToolContext) -> Any:
            return [x, context.leased, context.deliveries]

    class ByClass(Base):
        name = "by_class"

        def run(self, x: int, *, context: ToolContext) -> Any:  # noqa: ARG002
            return ["child", *super().run(x)]

    app.register_task(ByClass())

    @app.task(base=LeasedTask, name="remaining", shared=False)
    def remaining(*, context: ToolContext) -> float:
        return context.remaining

    @app.task(base=LeasedTask, name="inline", shared=False)
    def inline() -> Any:
        return app.tasks["by_class"](1), app.tasks["leased.add"].apply((1, 2)).result


app = register(Setup.from_env().app())
