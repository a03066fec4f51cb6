"""What becomes of a checkpoint when its task has ended.

Celery stores a task's outcome after the task's function has returned, in the same process, and
then sends a signal. Only then may the checkpoint go: a crash in between must find it still there.
Signals swallow errors, and so they may: a checkpoint that stays behind expires.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import signals

from celery_lease.checkpoints import Checkpoints
from celery_lease.checkpoints.errors import CheckpointError
from celery_lease.checkpoints.stores import find

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task

    from celery_lease.checkpoints.stores import Store
    from celery_lease.context import ToolContext

logger = logging.getLogger(__name__)

#: Where a request carries them from its run to the signal: two runs of one id may share a process.
ATTRIBUTE = "lease_checkpoints"


def attach(task: Task[Any, Any], context: ToolContext) -> None:
    """Give a leased run the checkpoints of its task id."""
    request = task.request
    task_id = context.task_id

    def reach() -> Store:
        _watch(request, checkpoints)
        return find(task, task_id)

    checkpoints = Checkpoints(task_id, task=task.name, token=context.fencing_token or 0, find=reach)
    context._checkpoints = checkpoints  # noqa: SLF001  (the context's other half)
    if context.deliveries > 1 or request.retries:
        _watch(request, checkpoints)  # an earlier run may have left one


def _watch(request: Any, checkpoints: Checkpoints) -> None:
    """Remove the checkpoint when the run of *request* has succeeded, let it expire if it failed.

    The receivers are connected by the first run that needs them, so that processes without
    checkpoints do not pay for the signals. Repeating it is safe.
    """
    setattr(request, ATTRIBUTE, checkpoints)
    signals.task_success.connect(_succeeded, dispatch_uid=f"{__name__}.succeeded")
    signals.task_failure.connect(_failed, dispatch_uid=f"{__name__}.failed")


def _succeeded(sender: Any = None, **_: Any) -> None:
    _end(sender, lambda checkpoints: checkpoints.forget())


def _failed(sender: Any = None, **_: Any) -> None:
    _end(sender, lambda checkpoints: checkpoints.retire())


def _end(task: Any, end: Callable[[Checkpoints], None]) -> None:
    checkpoints = getattr(getattr(task, "request", None), ATTRIBUTE, None)
    if checkpoints is None:
        return
    # A run that never asked for a checkpoint need not hear that there is no place for one.
    level = logging.WARNING if checkpoints.used else logging.DEBUG
    try:
        end(checkpoints)
    except CheckpointError as exc:
        logger.log(level, "%s; what was saved expires", exc)
