"""Orders the start of a task and the return of its message, by cells on the board.

A stopping worker requeues reserved messages, also from its pool, where a process may begin with one
at that moment. Each side writes its own cell before it reads the other's, so at least one sees the
other: a start that sees a withdrawal gives up, and a withdrawal that sees a start is undone. If
both see the other, the message stays, and the run that gave up returns it.
"""

from __future__ import annotations

from celery_lease.board import BEAT, STARTED, WITHDRAWN, Board, Slot
from celery_lease.board.publishing import settle_memory
from celery_lease.core.clock import host_seconds


def begin(board: Board, slot: Slot) -> bool:
    """Write the start of a task, which is its first beat; False: it must not run.

    For the task's side.
    """
    first = slot.first
    board.write_time(slot, STARTED, host_seconds())
    board.numbers[first + BEAT] = board.numbers[first + STARTED]
    settle_memory()
    return board.owns(slot) and board.cells[first + WITHDRAWN] != slot.mark | 1


def withdraw(board: Board, slot: Slot) -> bool:
    """Prevent a task's start; False: it has started, or will see the withdrawal itself.

    For the process that lent the record, before it takes it back.
    """
    board.cells[slot.first + WITHDRAWN] = slot.mark | 1
    settle_memory()
    if not board.read_time(slot, STARTED):
        return True
    board.cells[slot.first + WITHDRAWN] = 0
    return False
