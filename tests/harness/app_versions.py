"""An app for workers of two versions, and for one without leases: ``-A harness.app_versions``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

#: Set for a worker of an app from which leases were taken out.
NO_LEASES = "NO_LEASES"
if os.environ.get(NO_LEASES):
    sys.modules["celery_lease"] = None  # type: ignore[assignment]  # as where it is not installed

from harness.app import app, note  # noqa: E402

if TYPE_CHECKING:
    from celery import Task

if os.environ.get(NO_LEASES):
    options: dict[str, Any] = {"acks_late": True}
else:
    from celery_lease import LeasedTask
    from harness import app_checkpoints as checkpoints  # noqa: F401  (to be sent)

    options = {"base": LeasedTask}

    @app.task(base=LeasedTask, name="versions.kills", bind=True, lease_max_deliveries=1)
    def kills(self: Task[Any, Any]) -> None:
        """End the process that runs it."""
        note(self, "start")
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="versions.wait", bind=True, **options)
def wait(self: Task[Any, Any], gate: str) -> None:
    """Work until the gate opens; a lease is kept by beats."""
    note(self, "start")
    while not Path(gate).exists():
        if "base" in options:
            from celery_lease import current_context

            current_context().beat()
        time.sleep(0.05)
    note(self, "end")
