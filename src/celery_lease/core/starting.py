"""How a task's start and the return of its message keep out of each other's way, on the board.

A stopping worker takes back what has not started, also from its pool, where a process may be
beginning with it just then. Each side writes its own cell before it reads the other's, so at least
one sees the other: a start that finds its message withdrawn is none, and a withdrawal that finds a
start is undone. If both find the other, the message stays and the run, which is none, returns it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_lease.core.board import BEAT, STARTED, WITHDRAWN
from celery_lease.core.clock import host_seconds
from celery_lease.core.publishing import settle_memory

if TYPE_CHECKING:
    from celery_lease.core.board import Board, Slot


def begin(board: Board, slot: Slot) -> bool:
    """Say that a task begins to run, which is its first beat; False: it must not.

    For the task's side.
    """
    now = host_seconds()
    board.write_time(slot, STARTED, now)
    board.write_time(slot, BEAT, now)
    settle_memory()
    return board.owns(slot) and board.cells[slot.first + WITHDRAWN] != slot.mark | 1


def withdraw(board: Board, slot: Slot) -> bool:
    """Keep a task from starting; False: it has started, or is about to see that it must not.

    For the process that lent the record, and has not taken it back.
    """
    board.cells[slot.first + WITHDRAWN] = slot.mark | 1
    settle_memory()
    if not board.read_time(slot, STARTED):
        return True
    board.cells[slot.first + WITHDRAWN] = 0
    return False
