"""Installs the worker parts into an app."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from billiard.process import current_process
from celery.signals import worker_process_init
from celery.utils.imports import symbol_by_name

from celery_lease import settings
from celery_lease.task import mapping

if TYPE_CHECKING:
    from celery import Celery

WORKER_STEP = "celery_lease.worker.steps:LeaseSettings"
CONSUMER_STEP = "celery_lease.worker.steps:LeaseConsumer"
#: Offers a task process's stack to the watchdog; a name, so that other processes do not import it.
STACK_OFFER = "celery_lease.worker.diagnosis:offer_stack"
#: Prepares for the stack of a crash.
CRASH_OFFER = "celery_lease.worker.crashes:offer"

#: The id of the task process that is ready for leases: this one, or the one that it was forked of.
_entered: list[int] = []


def install(app: Celery) -> None:
    """Add the worker parts to *app*; they do nothing where no task gets a lease.

    Binding a leased task does this, and so does ``celery worker`` where ``lease_tasks`` is set. A
    worker that a program starts in itself needs it where the app has no leased task.

    Safe to repeat: an app's steps are sets, and steps that are named by a string are imported by
    the worker that starts them, by nobody else.
    """
    worker_process_init.connect(enter_process)
    app.steps["worker"].add(WORKER_STEP)
    app.steps["consumer"].add(CONSUMER_STEP)
    mapping.register(app)


def install_if_set(app: Celery) -> None:
    """Add the worker parts to an app that sets ``lease_tasks``; they refuse what is wrong there."""
    if settings.means_tasks(app.conf):
        install(app)


def enter_process(**_: Any) -> None:
    """Make a task process ready for leases; safe to repeat.

    A spawned process of an app that does not import this package does so at its first message.
    """
    if current_process().name != "MainProcess" and _entered[:] != [os.getpid()]:
        _entered[:] = [os.getpid()]
        _leave_process_group()
        symbol_by_name(STACK_OFFER)()
        symbol_by_name(CRASH_OFFER)()


def _leave_process_group() -> None:
    """Put a task process into a group of its own.

    A supervisor, a container's stop or Ctrl-C sends the worker's signal to its whole group, and
    would end a task process in the middle of its task. The worker ends its processes by process id,
    and the kernel does when the worker is killed.
    """
    if hasattr(os, "setpgid"):
        with suppress(OSError):
            os.setpgid(0, 0)
