"""The current context: its creation, its lookup, and the check of its lease at the end of a run.

This module is part of :class:`ToolContext`, and may use its private attributes.
"""

from __future__ import annotations

import functools
import math
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from celery_lease.board import BEAT, Board, Outcome, Slot, publishing, spans, starting
from celery_lease.board.spans import Span
from celery_lease.core.clock import host_seconds
from celery_lease.core.delivery import Answer
from celery_lease.core.errors import LeaseLost, TaskCancelled
from celery_lease.core.loss import FLAG_RELEASED, FLAG_SUPERSEDED, FLAGS_FINAL
from celery_lease.task.context import ToolContext

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_lease.core.ticket import Ticket

#: Seconds between two looks at the board by :func:`prolong`.
POLL_INTERVAL = 0.02

_current: ContextVar[ToolContext | None] = ContextVar("celery_lease_context", default=None)


def current_context() -> ToolContext:
    """Return the context of the leased task that runs here.

    Raises:
        LookupError: No leased task runs in this thread.
    """
    context = _current.get()
    if context is None:
        raise LookupError(
            "no leased task runs here; call current_context() inside one, in the task's own "
            "thread, and pass the context on to other threads"
        )
    return context


#: Make a context the current one, and undo that with what the former has returned.
enter, leave = _current.set, _current.reset


@contextmanager
def entered(context: ToolContext) -> Iterator[ToolContext]:
    """Make *context* the current context."""
    token = enter(context)
    try:
        yield context
    finally:
        leave(token)


def active_context() -> ToolContext | None:
    """Return the current context, or None."""
    return _current.get()


def log_fields() -> dict[str, object]:
    """Return the log fields of the leased task that runs here; none outside of a leased task."""
    context = _current.get()
    return context._fields if context is not None and context.leased else {}


class WorkerOutOfReach(LeaseLost):
    """The worker that keeps the lease cannot be reached from this process."""


def private_context(task_id: str = "") -> ToolContext:
    """Return a context without a lease, for a call outside a worker."""
    context = ToolContext(*_private_record(), task_id=task_id)
    context._start()
    return context


def leased_context(ticket: Ticket, task_id: str) -> ToolContext:
    """Return the context for a ticket of the worker's main process, and begin to run.

    Raises:
        WorkerOutOfReach: That worker is gone, or its board cannot be reached from this process.
        LeaseLost: The lease is gone already.
    """
    try:
        board = Board.at(ticket.board)
    except OSError as exc:
        raise WorkerOutOfReach(task_id, f"the worker's main process is gone ({exc})") from None
    slot = Slot(ticket.slot, ticket.generation)
    context = ToolContext(board, slot, task_id=task_id, ticket=ticket)
    if context.is_lost:  # checked first: later writes could be in another lease's record
        raise LeaseLost(task_id, "gone before the task started")
    if not starting.begin(board, slot):
        raise LeaseLost(task_id, "taken back before the task started")
    return context


def enter_body(context: ToolContext) -> float:
    """Enter the body of a run, which begins with a beat, and return that as it is on the board.

    Raises:
        TaskCancelled: The task was cancelled while it waited for a process.
    """
    board, slot = context._board, context._slot
    may_go_on = context._may_go_on_for(0.0)
    if may_go_on or board.owns(slot):
        board.write_time(slot, BEAT, host_seconds())
    spans.enter(board, slot, Span.BODY)
    if not may_go_on and context.cancelled:
        raise TaskCancelled(context.task_id)
    return context._record[BEAT]


def leave_body(context: ToolContext, since: float) -> bool:
    """Begin to store a run's outcome; return whether its body has beaten after its first beat."""
    if context._published:
        close_progress(context)
    beaten = context._record[BEAT] > since
    spans.enter(context._board, context._slot, Span.STORING, beaten=beaten)
    return beaten


def try_again(context: ToolContext, *, beaten: bool) -> None:
    """Show that a first attempt to store a run's outcome has failed."""
    spans.enter(context._board, context._slot, Span.RETRYING, beaten=beaten)


def end_lease(context: ToolContext, outcome: Outcome) -> None:
    """Write the outcome of a run; from here on the context has no lease."""
    context._board.write_outcome(context._slot, outcome)
    context.leased = False
    context._board, context._slot, record = _nobodys_record()
    context._record, context._base, context._limit = record


def _private_record() -> tuple[Board, Slot]:
    board = Board.private()
    slot = board.lend()
    board.allow(slot, math.inf)
    return board, slot


@functools.cache
def _nobodys_record() -> tuple[Board, Slot, tuple[memoryview[float], float, float]]:
    """Return a record for beats that no longer count."""
    board, slot = _private_record()
    return board, slot, board.record(slot)


def was_released(context: ToolContext) -> bool:
    """Whether the worker itself has ended the lease of a run that goes on."""
    return bool((context._flags() or 0) & FLAG_RELEASED)


def must_give_up(context: ToolContext) -> bool:
    """Whether an outcome that is not stored by now must not be stored any more."""
    return bool((context._flags() or 0) & FLAGS_FINAL)


def close_progress(context: ToolContext) -> None:
    """Stop the publication of a run's progress, before its outcome is stored."""
    if context._published:
        publishing.close(context._board, context._slot)


def prolong(context: ToolContext, margin: float) -> bool:
    """Count a run's end as a beat, and wait until the keeper has extended the lease for it.

    For brokers that cannot confirm an expired lease: it must not expire.
    """
    rest = threading.Event()
    if context.remaining > 0:
        context._board.write_time(context._slot, BEAT, host_seconds())
    while 0 < context.remaining <= margin:
        rest.wait(POLL_INTERVAL)
    return context.remaining > 0


def standing(context: ToolContext, margin: float) -> Answer:
    """Return the state of the lease by the board: HELD for at least *margin* seconds, or LOST.

    UNKNOWN: it is over, or nearly over, by the board; the broker may still know it as held. A task
    that got the loss at a beat and stopped its work has lost, with any answer of the broker.
    """
    if context._observed:
        return Answer.HELD
    if context._loss_known and context._aborts:
        return Answer.LOST
    if context._may_go_on_for(margin):
        return Answer.HELD
    flags = context._flags()
    if flags is None or flags & FLAG_SUPERSEDED:
        return Answer.LOST
    left = max(context.remaining, context._confirmed_until - host_seconds())
    return Answer.HELD if left > margin else Answer.UNKNOWN


def note_confirmed(context: ToolContext, until: float) -> None:
    """Store that the broker has confirmed a lease that is over by the board; in host seconds."""
    context._confirmed_until = until
