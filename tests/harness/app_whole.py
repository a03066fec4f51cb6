"""An app of plain tasks that imports nothing of leases: ``celery -A harness.app_whole worker``.

What its tasks need of Celery, each has: an own request class, both ways of acknowledging, and each
way to lose a process.
"""

# mypy: disable-error-code="untyped-decorator, misc, no-untyped-call"

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from celery.worker.request import Request

from harness.app import app, gate_path, note
from harness.ledger import record

if TYPE_CHECKING:
    from celery import Task

__all__ = ["app"]


class OwnRequest(Request):
    """Writes down that a pool took the task."""

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        """A pool took the task."""
        super().on_accepted(pid, time_accepted)
        record("accepted", self.id)


def work(self: Task[Any, Any], seconds: float = 0.0) -> None:
    """Work for some seconds."""
    note(self, "start")
    time.sleep(seconds)
    note(self, "end")


app.task(name="whole.late", bind=True, acks_late=True)(work)
app.task(name="whole.own", bind=True, acks_late=True, Request=OwnRequest)(work)
app.task(name="whole.early", bind=True)(work)


@app.task(name="whole.gated", bind=True, acks_late=True)
def gated(self: Task[Any, Any], gate: str) -> None:
    """Work until the test opens this worker's gate."""
    note(self, "start")
    while not gate_path(gate, self.request.hostname or "").exists():
        time.sleep(0.02)
    note(self, "end")


def die(self: Task[Any, Any]) -> None:
    """Kill the process."""
    note(self, "start")
    os.kill(os.getpid(), signal.SIGKILL)


app.task(name="whole.dies", bind=True, acks_late=True)(die)
app.task(name="whole.dies_again", bind=True, acks_late=True, reject_on_worker_lost=True)(die)
