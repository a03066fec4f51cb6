"""Leased tasks whose requests are of a class of the project's own, as Read the Docs has them.

Worker: ``celery -A harness.app_own_request worker``.
"""

# mypy: disable-error-code="untyped-decorator, misc, no-untyped-call"

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.worker.request import Request

from celery_lease import LeasedTask, current_context, leased_task
from harness.app import app, note
from harness.ledger import record

__all__ = ["app"]

EXTENSION = 3


class BuildRequest(Request):
    """Writes down what it is told."""

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        """A pool took the task."""
        super().on_accepted(pid, time_accepted)
        record("accepted", self.id)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """A time limit passed."""
        super().on_timeout(soft, timeout)
        record("soft" if soft else "hard", self.id)


class BuildTask(Task[Any, Any] if TYPE_CHECKING else Task):
    """A plain task class that names its request class."""

    abstract = True
    Request = "harness.app_own_request:BuildRequest"


def work(self: Task[Any, Any], seconds: float) -> None:
    """Beat for some seconds."""
    note(self, "start", deliveries=current_context().deliveries)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        current_context().beat()
        time.sleep(0.05)
    note(self, "end")


leased: dict[str, Any] = {"lease_extension": EXTENSION, "bind": True}
leased_task(base=BuildTask, name="own.base", **leased)(work)
app.task(base=LeasedTask, Request=BuildRequest, name="own.option", **leased)(work)
app.task(base=LeasedTask, Request=BuildRequest, name="own.limited", time_limit=2, **leased)(work)
