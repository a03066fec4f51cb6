"""The run of a leased task in this thread: its span and its outcome.

Invariant: the outcome is written once, when it is stored, and the lease ends with that.
"""

from __future__ import annotations

import math
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_lease.board import Outcome
from celery_lease.board.spans import Span
from celery_lease.task import current

if TYPE_CHECKING:
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
    body_since: float = field(default=math.inf, init=False)  #: its first beat, on its board
    beaten: bool = field(default=False, init=False)  #: its body beat once more, and has returned
    outcome: Outcome = field(default=Outcome.UNREPORTED, init=False)
    #: Its outcome is stored or discarded, and its lease has ended.
    is_over: bool = field(default=False, init=False)
    tries: int = field(default=0, init=False)  #: failed attempts to store its outcome
    goes_on: bool = field(default=False, init=False)  #: it is retried, and the retry is sent
    released: bool = field(default=False, init=False)  #: its worker ended its lease first
    in_haste: bool = field(default=False, init=False)  #: no further attempt to store its outcome
    _outer: tuple[Token[Run | None], Token[ToolContext | None]] = field(init=False)

    @property
    def task_id(self) -> str:
        return self.context.task_id

    def starts(self, request: Any) -> bool:
        """Whether the body that is about to run for a task's *request* is this run's."""
        return (
            self.span is Span.STARTING and not self.is_over and request.id == self.context.task_id
        )

    def enter_body(self) -> None:
        """Enter the body, whose beats count.

        Raises:
            TaskCancelled: The task was cancelled while it waited for a process.
        """
        self.span = Span.BODY
        self.body_since = current.enter_body(self.context)

    def leave_body(self) -> None:
        """Enter the span in which the outcome is stored, even if the body was not reached."""
        if not self.span.stores and not self.is_over:
            self.span = Span.STORING
            self.beaten = current.leave_body(self.context, self.body_since)

    def failed_to_store(self) -> bool:
        """Count a failed attempt to store the outcome; return whether it is the first."""
        self.tries += 1
        if self.span is Span.STORING:
            self.span = Span.RETRYING
            current.try_again(self.context, beaten=self.beaten)
        return self.tries == 1

    def end(self, outcome: Outcome) -> None:
        """Write the outcome for the main process, unless one is written already."""
        if not self.is_over and outcome is not Outcome.UNREPORTED:
            self.outcome, self.is_over = outcome, True
            self.released = outcome is Outcome.DISCARDED and current.was_released(self.context)
            current.end_lease(self.context, outcome)

    def __enter__(self) -> None:
        """Make this the current run, and its context the current one."""
        self._outer = _current.set(self), current.enter(self.context)

    def __exit__(self, *_: object) -> None:
        run, context = self._outer
        current.leave(context)
        _current.reset(run)


def current_run() -> Run | None:
    """Return the current run, or None."""
    return _current.get()
