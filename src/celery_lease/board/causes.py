"""Finds the reason of a loss in a task process, from the keeper's flags and from times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_lease.board import DEADLINE, GRAINS, STARTED, Board, Slot
from celery_lease.core.loss import LossReason, reason_in

if TYPE_CHECKING:
    from celery_lease.core.ticket import Ticket


def why_lost(board: Board, slot: Slot, flags: int | None, ticket: Ticket) -> LossReason:
    """Return the reason of a loss; *flags* None: the record belongs to another lease."""
    if flags is None:
        return LossReason.SUPERSEDED
    if (reason := reason_in(flags)) is not None:
        return reason
    # The deadline passed before the keeper set a flag. Times on the board are rounded down.
    deadline = board.read_time(slot, DEADLINE) + 1 / GRAINS
    started = board.read_time(slot, STARTED)
    if deadline >= ticket.longest_until:
        return LossReason.BROKER_LIMIT
    return LossReason.MAX_DURATION if deadline >= started + ticket.longest else LossReason.EXPIRED
