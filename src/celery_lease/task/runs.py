"""The run of a leased task in this thread: its span and its outcome.

Invariant: the outcome is written once, when it is stored, and the lease ends with that.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_lease.board import Outcome
from celery_lease.board.spans import Span
from celery_lease.task.current import (
    close_progress,
    end_lease,
    enter_span,
    last_beat,
    was_released,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Task

    from celery_lease.core.ticket import Ticket
    from celery_lease.task.context import ToolContext

_current: ContextVar[Run | None] = ContextVar("celery_lease_run", default=None)


@dataclass(slots=True, eq=False)
class Run:
    """One run, for the thread in which Celery traces it."""

    task: Task[Any, Any]
    context: ToolContext
    ticket: Ticket
    span: Span = field(default=Span.STARTING, init=False)
    body_since: float = field(default=math.inf, init=False)  #: its first beat, in host seconds
    beaten: bool = field(default=False, init=False)  #: its body beat once more, and has returned
    outcome: Outcome = field(default=Outcome.UNREPORTED, init=False)
    tries: int = field(default=0, init=False)  #: failed attempts to store its outcome
    goes_on: bool = field(default=False, init=False)  #: it is retried, and the retry is sent
    released: bool = field(default=False, init=False)  #: its worker ended its lease first
    in_haste: bool = field(default=False, init=False)  #: no further attempt to store its outcome

    @property
    def task_id(self) -> str:
        return self.context.task_id

    @property
    def is_over(self) -> bool:
        """Whether its outcome is stored or discarded, and its lease has ended."""
        return self.outcome is not Outcome.UNREPORTED

    def starts(self, task: Task[Any, Any]) -> bool:
        """Whether the body that *task* is about to run is this run's."""
        return self.span is Span.STARTING and not self.is_over and task.request.id == self.task_id

    @contextmanager
    def body(self) -> Iterator[None]:
        """Enter the body, whose beats count, and leave it."""
        self._enter(Span.BODY)
        self.body_since = last_beat(self.context)
        try:
            yield
        finally:
            self.leave_body()

    def leave_body(self) -> None:
        """Enter the span in which the outcome is stored, even if the body was not reached."""
        if not self.span.stores and not self.is_over:
            close_progress(self.context)
            self.beaten = last_beat(self.context) > self.body_since
            self._enter(Span.STORING)

    def failed_to_store(self) -> bool:
        """Count a failed attempt to store the outcome; return whether it is the first."""
        self.tries += 1
        if self.span is Span.STORING:
            self._enter(Span.RETRYING)
        return self.tries == 1

    def end(self, outcome: Outcome) -> None:
        """Write the outcome for the main process, unless one is written already."""
        if not self.is_over and outcome is not Outcome.UNREPORTED:
            self.outcome, self.released = outcome, was_released(self.context)
            end_lease(self.context, outcome)

    def _enter(self, span: Span) -> None:
        self.span = span
        enter_span(self.context, span, beaten=self.beaten)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the current run."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


def current_run() -> Run | None:
    """Return the current run, or None."""
    return _current.get()
