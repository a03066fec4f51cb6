"""Looks at the checkpoint of a task from outside of its runs, for operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_lease.task.checkpoints.envelope import unpack
from celery_lease.task.checkpoints.stores import store_of

if TYPE_CHECKING:
    from celery import Celery


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint as it is stored now."""

    task: str  #: name of the task that saved it
    token: int  #: fencing token of the run that saved it
    saved: str  #: when, in ISO 8601
    size: int  #: in bytes
    loops: tuple[str, ...]  #: names of the loops whose places are stored
    value: Any  #: the state


def look(app: Celery, task_id: str) -> Saved | None:
    """Return the checkpoint of a task, and change nothing; None: there is none.

    It is sought where the app's own result backend, or else its broker, keeps it.

    Raises:
        CheckpointUnreadable: It is damaged, or of another version.
        Exception: The store did not answer, in as many ways as there are stores.
    """
    store = store_of(app, app.backend)
    text = None if store is None else store.peek(task_id)
    if text is None:
        return None
    found = unpack(text, task_id=task_id)
    return Saved(found.task, found.token, found.saved, len(text), tuple(found.loops), found.value)
