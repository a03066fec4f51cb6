"""Put the worker parts into an app."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from billiard.process import current_process
from celery.signals import worker_process_init
from celery.utils.imports import symbol_by_name

if TYPE_CHECKING:
    from celery import Celery

WORKER_STEP = "celery_lease.worker.steps:LeaseSettings"
CONSUMER_STEP = "celery_lease.worker.steps:LeaseConsumer"
#: What a task process does for the watchdog; named, so that other processes do not import it.
STACK_OFFER = "celery_lease.worker.diagnosis:offer_stack"


def install(app: Celery) -> None:
    """Add the bootsteps to *app*; they do nothing where no leased task is run.

    Binding a leased task does this. Safe to repeat: an app's steps are sets, and steps that are
    named by a string are imported by the worker that starts them, by nobody else.
    """
    worker_process_init.connect(_leave_process_group)
    worker_process_init.connect(_offer_stack)
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


def _offer_stack(**_: Any) -> None:
    """Let the watchdog ask a task process what it is doing."""
    if current_process().name != "MainProcess":
        symbol_by_name(STACK_OFFER)()
