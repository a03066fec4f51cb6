"""Reads a task's result, for commands that can do without it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from celery import Celery, states

#: The most characters of an error that are shown.
LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The stored result of one task."""

    state: str  #: PENDING: the backend does not know the task
    done_at: float | None = None  #: seconds since 1970
    worker: str = ""  #: the worker that ran it, if ``result_extended`` is on
    error: str = ""  #: the error of a failure

    @property
    def is_final(self) -> bool:
        """Whether the task is over."""
        return self.state in states.READY_STATES


def result_of(app: Celery, task_id: str) -> Result | None:
    """Return the stored result of a task; None: there is no backend, or it does not answer."""
    if app.conf.result_backend in (None, "", "disabled", "disabled://"):
        return None
    try:
        slow = hasattr(app.backend, "connparams")  # Redis
        found = app.AsyncResult(task_id, backend=_hasty(app) if slow else app.backend)
        state = str(found.state)
        kept: Any = found.result
        return Result(
            state=state,
            done_at=seconds_of(found.date_done) if state in states.READY_STATES else None,
            worker=str(found.worker or ""),
            error=_error(kept) if state in states.EXCEPTION_STATES else "",
        )
    except Exception:  # noqa: BLE001  (an unreachable backend raises many kinds of errors)
        return None


@cache
def _hasty(app: Celery) -> Any:
    from celery_lease.worker.compat import hasty_backend  # noqa: PLC0415  (every command imports this)

    return hasty_backend(app)


def seconds_of(date: Any) -> float | None:
    """Return a date, or its ISO text, as seconds since 1970; without a zone it is in UTC.

    Raises:
        ValueError: The text is no date.
    """
    if isinstance(date, str):
        date = datetime.fromisoformat(date)
    if not isinstance(date, datetime):
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _error(kept: Any) -> str:
    text = " ".join(f"{type(kept).__name__}: {kept}".rstrip(": ").split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
