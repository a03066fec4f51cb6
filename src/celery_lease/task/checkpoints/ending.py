"""Removes or retires a checkpoint when its task has ended.

Celery stores a task's outcome after the task's function has returned, in the same process, and then
sends a signal. Only then may the checkpoint be removed: after a crash in between it is still
needed. Celery logs and ignores errors in receivers, and that is enough: a leftover checkpoint
expires.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from celery import Task, signals

from celery_lease.task.checkpoints import Checkpoints
from celery_lease.task.checkpoints.errors import CheckpointError
from celery_lease.task.checkpoints.stores import Store, find

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.task.context import ToolContext

logger = logging.getLogger(__name__)

#: The request's attribute for its checkpoints: two runs of one id may share a process.
ATTRIBUTE = "lease_checkpoints"


def attach(task: Task[Any, Any], request: Any, context: ToolContext) -> None:
    """Give a leased run the checkpoints of its task id, which are made when they are first used.

    Its ``before_start`` may have got them already, if it has one of its own.
    """
    if "_make_checkpoints" in vars(context):
        return
    make = functools.partial(_make, task, request, context.fencing_token or 0)
    context._make_checkpoints = make  # noqa: SLF001  (the context's other half)
    # A receiver of task_prerun gets some in memory; a thread of it may not be ready with that yet.
    if context._has_checkpoints:  # noqa: SLF001
        vars(context).pop("_checkpoints", None)
    if context.deliveries > 1 or request.retries:
        _watch(request, context._checkpoints)  # noqa: SLF001  (an earlier run may have left one)


def _make(task: Task[Any, Any], request: Any, token: int, task_id: str) -> Checkpoints:
    def reach() -> Store:
        _watch(request, checkpoints)
        return find(task, task_id)

    checkpoints = Checkpoints(task_id, task=task.name, token=token, find=reach)
    return checkpoints


def _watch(request: Any, checkpoints: Checkpoints) -> None:
    """Remove the checkpoint when the run of *request* succeeds, retire it when the run fails.

    The first run that needs the receivers connects them, so that processes without checkpoints do
    not pay for the signals.
    """
    setattr(request, ATTRIBUTE, checkpoints)
    _connect()


@functools.cache
def _connect() -> None:
    """Connect the receivers once a process; each call of Celery's ``connect()`` keeps memory."""
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
    # A run that never used a checkpoint needs no warning that there is no store for one.
    level = logging.WARNING if checkpoints.used else logging.DEBUG
    try:
        end(checkpoints)
    except CheckpointError as exc:
        logger.log(level, "%s; what was saved expires", exc)
