"""Put the worker parts into an app."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from billiard.process import current_process
from celery.signals import worker_process_init

if TYPE_CHECKING:
    from celery import Celery

WORKER_STEP = "celery_lease.worker.steps:LeaseSettings"
CONSUMER_STEP = "celery_lease.worker.steps:LeaseConsumer"


def install(app: Celery) -> None:
    """Add the bootsteps to *app*; they do nothing where no leased task is run.

    Binding a leased task does this. Safe to repeat: an app's steps are sets, and steps that are
    named by a string are imported by the worker that starts them, by nobody else.
    """
    worker_process_init.connect(_leave_process_group)
    app.steps["worker"].add(WORKER_STEP)
    app.steps["consumer"].add(CONSUMER_STEP)


def _leave_process_group(**_: Any) -> None:
    """Put a task process into a group of its own.

    A supervisor, a container's stop or Ctrl-C sends the worker's signal to its whole group, and a
    task process would die of it in the middle of its task. The worker ends its own, by process
    id, and the kernel does when the worker is killed.
    """
    if current_process().name != "MainProcess" and hasattr(os, "setpgid"):
        with suppress(OSError):
            os.setpgid(0, 0)
