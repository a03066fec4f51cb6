"""Put the worker parts into an app."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery import Celery

WORKER_STEP = "celery_lease.worker.steps:LeaseSettings"
CONSUMER_STEP = "celery_lease.worker.steps:LeaseConsumer"


def install(app: Celery) -> None:
    """Add the bootsteps to *app*; they do nothing where no leased task is run.

    Binding a leased task does this. Safe to repeat: an app's steps are sets, and steps that are
    named by a string are imported by the worker that starts them, by nobody else.
    """
    app.steps["worker"].add(WORKER_STEP)
    app.steps["consumer"].add(CONSUMER_STEP)
