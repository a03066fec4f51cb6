"""What an app's result backend says of a task, for commands that can do without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery import states

if TYPE_CHECKING:
    from celery import Celery


def state_of(app: Celery, task_id: str) -> str | None:
    """Return a task's state; None: there is no backend, or it does not answer.

    A state of PENDING means that the backend knows nothing of the task.
    """
    if app.conf.result_backend in (None, "", "disabled", "disabled://"):
        return None
    try:
        return str(app.AsyncResult(task_id).state)
    except Exception:  # noqa: BLE001  (as many ways to be away as there are backends)
        return None


def is_final(state: str | None) -> bool:
    """Whether a task is over in that state."""
    return state in states.READY_STATES
