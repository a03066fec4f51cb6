"""The context of the task that runs here: how it is made, found, and judged at the end.

What is private to :class:`ToolContext` for its users is not for this module, its other half.
"""

from __future__ import annotations

import math
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery_lease.context import ToolContext
from celery_lease.core import board as beatboard, publishing
from celery_lease.core.board import BEAT, Board, Slot
from celery_lease.core.clock import host_seconds
from celery_lease.core.delivery import Answer
from celery_lease.core.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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


@contextmanager
def entered(context: ToolContext) -> Iterator[ToolContext]:
    """Make *context* the current one."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def active_context() -> ToolContext | None:
    """Return the current context, if there is one."""
    return _current.get()


def log_fields() -> dict[str, object]:
    """Return the fields of a log line of the leased task that runs here; none of no leased task."""
    context = _current.get()
    return context._fields if context is not None and context.leased else {}


def private_context(task_id: str = "") -> ToolContext:
    """Return a context without a lease, for a call outside a worker."""
    board = Board.private()
    slot = board.lend()
    board.allow(slot, math.inf)
    context = ToolContext(board, slot, task_id=task_id)
    context._start()
    return context


def leased_context(ticket: Mapping[str, Any], task_id: str) -> ToolContext:
    """Return the context for a ticket that the worker's main process wrote, and begin to run.

    Raises:
        LeaseLost: That worker is gone, so nobody keeps the lease, or the lease is gone already.
    """
    try:
        board = Board.at(ticket["board"])
    except OSError:
        raise LeaseLost(task_id, "the worker's main process is gone") from None
    slot = Slot(ticket["slot"], ticket["generation"])
    context = ToolContext(board, slot, task_id=task_id, ticket=ticket)
    if context.is_lost:  # looked at first: what is written might be in another lease's record
        raise LeaseLost(task_id, "gone before the task started")
    if not context._start():
        raise LeaseLost(task_id, "taken back before the task started")
    return context


def close_progress(context: ToolContext) -> None:
    """Have nothing more of a run's progress published, before its outcome is stored."""
    if context._published:
        publishing.close(context._board, context._slot)


def prolong(context: ToolContext, margin: float) -> bool:
    """Count a run's end as a beat, and wait until the keeper extended the lease for it.

    For brokers that cannot confirm a lease that has expired: it must not come to that.
    """
    patience = threading.Event()
    if context.remaining > 0:
        context._board.write_time(context._slot, BEAT, host_seconds())
    while 0 < context.remaining <= margin:
        patience.wait(POLL_INTERVAL)
    return context.remaining > 0


def standing(context: ToolContext, margin: float) -> Answer:
    """Tell what is known here of the lease: held for at least *margin* seconds, or lost.

    UNKNOWN: it is over, or as good as over, by the board; the broker may still know it as held.
    A task that was told of its loss and stopped its work has lost, whatever the broker says.
    """
    if context._observed:
        return Answer.HELD
    flags = context._flags()
    if flags is None or flags & beatboard.FLAG_TAKEN or (context._told and context._aborts):
        return Answer.LOST
    return Answer.HELD if context.remaining > margin else Answer.UNKNOWN
