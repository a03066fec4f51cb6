"""What an app's result backend says of a task, for commands that can do without it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery import states

if TYPE_CHECKING:
    from celery import Celery


#: Characters of an error that are worth telling.
LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a backend keeps of one task."""

    state: str  #: PENDING: it knows nothing of the task
    done_at: float | None = None  #: seconds since 1970
    worker: str = ""  #: who ran it, where ``result_extended`` is on
    error: str = ""  #: what it failed with


def result_of(app: Celery, task_id: str) -> Result | None:
    """Return what is kept of a task; None: there is no backend, or it does not answer."""
    if app.conf.result_backend in (None, "", "disabled", "disabled://"):
        return None
    try:
        found = app.AsyncResult(task_id)
        state = str(found.state)
        kept: Any = found.result
        return Result(
            state=state,
            done_at=_seconds(found.date_done) if is_final(state) else None,
            worker=str(found.worker or ""),
            error=_error(kept) if state in states.EXCEPTION_STATES else "",
        )
    except Exception:  # noqa: BLE001  (as many ways to be away as there are backends)
        return None


def state_of(app: Celery, task_id: str) -> str | None:
    """Return a task's state, as :func:`result_of` does."""
    found = result_of(app, task_id)
    return found.state if found else None


def is_final(state: str | None) -> bool:
    """Whether a task is over in that state."""
    return state in states.READY_STATES


def _seconds(date: Any) -> float | None:
    if isinstance(date, str):
        date = datetime.fromisoformat(date)
    if not isinstance(date, datetime):
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _error(kept: Any) -> str:
    text = " ".join(f"{type(kept).__name__}: {kept}".rstrip(": ").split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
