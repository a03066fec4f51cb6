"""Calls a task's ``on_failure`` and ``after_return`` at ends for which Celery calls no hooks.

Celery's tracer calls them after a body that returned or raised. It calls none for a revoked task,
and none for a task that its main process fails; a resource that they release (the lock of a unique
task) would stay taken. With this module every final end without success calls both, once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Task

logger = logging.getLogger(__name__)


def call(
    task: Task[Any, Any], request: Any, state: str, exc: Exception, extra: Mapping[str, object]
) -> None:
    """Call ``on_failure`` and ``after_return`` of a task as Celery's tracer does for a failure.

    The outcome is stored and the message settled by now: an error in a hook is logged, as Celery
    does with ``after_return``.

    Args:
        task: The task.
        request: The task's request, ``self.request`` in the hooks.
        state: The state that is stored.
        exc: The exception that stands for the task's error.
        extra: Fields of the log line.
    """
    einfo = raised(exc)
    of_run = (request.id, request.args, request.kwargs)
    calls = {"on_failure": (exc, *of_run, einfo), "after_return": (state, exc, *of_run, None)}
    task.request_stack.push(request)
    try:
        for name, args in calls.items():
            try:
                getattr(task, name)(*args)
            except Exception:
                text = "%s of task %s[%s] failed"
                logger.exception(text, name, task.name, request.id, extra=extra)
    finally:
        task.request_stack.pop()
        exc.__traceback__ = None  # the traceback has this frame, which has the error


def raised(exc: BaseException) -> ExceptionInfo:
    """Return an error as Celery passes it on, with a traceback from here."""
    try:
        raise exc
    except type(exc):
        return ExceptionInfo()
