"""What a task is told of its lease when the gate of its record is closed.

:class:`~celery_lease.task.context.ToolContext` comes here rarely: a beat only compares two times.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_lease.board import BEAT, standstill
from celery_lease.board.causes import why_lost
from celery_lease.core.clock import host_seconds
from celery_lease.core.errors import LeaseLost, ShutdownRequested, TaskCancelled
from celery_lease.core.loss import FLAG_CANCELLED, FLAG_SHUTDOWN, FLAGS_ENDED, LossReason

if TYPE_CHECKING:
    from celery_lease.task.context import ToolContext

logger = logging.getLogger(__name__)


def may_go_on(context: ToolContext) -> bool:
    """Raise what the task is told, or return whether its beat still counts."""
    flags = context._flags()
    is_lost = context.is_lost
    if is_lost:
        lost(context, flags)
    if flags is None:
        return False
    if flags & FLAG_CANCELLED:
        _cancel(context)
    if flags & FLAG_SHUTDOWN:
        raise ShutdownRequested(context.task_id)
    return not is_lost


def superseded(context: ToolContext) -> None:
    """Handle a loss that the store of checkpoints shows before the board does."""
    lost(context, FLAGS_ENDED)


def lost(context: ToolContext, flags: int | None) -> None:
    """Raise the loss; if the task goes on in spite of it, log it once."""
    board, slot = context._board, context._slot
    reason = why_lost(board, slot, flags, context._ticket)
    known, context._loss_known = context._loss_known, True
    if context._aborts:
        beat = board.read_time(slot, BEAT)
        stood = standstill.since(board, beat, host_seconds())
        expired = reason is LossReason.EXPIRED
        raise LeaseLost(context.task_id, str(reason), stood if expired else 0.0)
    if not known:
        text = "lease of task %s lost (%s); the task runs on"
        logger.warning(text, context.task_id, reason, extra=context._fields)


def _cancel(context: ToolContext) -> None:
    """Raise the cancellation. The first time is a beat: the clean-up has a whole lease."""
    if not context._cancel_raised:
        context._cancel_raised = True
        context._board.write_time(context._slot, BEAT, host_seconds())
    raise TaskCancelled(context.task_id)
