"""How a task's end and a publication of its progress keep out of each other's way, on the board.

The main process stores progress, the task process stores the outcome, and the outcome has to be
last. Each side writes its own cell before it reads the other's, so at least one sees the other: the
publisher gives way to an end that it sees, and an end waits for a publication that it sees.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from celery_lease.core.board import CLOSED, PUBLISHING
from celery_lease.core.clock import host_seconds

if TYPE_CHECKING:
    from celery_lease.core.board import Board, Slot

#: Longest that an end waits for a publication, and the time between two looks, in seconds.
PATIENCE, LOOK_INTERVAL = 5.0, 0.002


def begin(board: Board, slot: Slot) -> bool:
    """Announce a publication of a task's progress; False: it is closed, and must not be.

    For the main process, which calls :func:`end` after one that was announced.
    """
    if not board.is_latest(slot):
        return False
    board.cells[slot.first + PUBLISHING] = slot.mark | 1
    settle_memory()
    if board.cells[slot.first + CLOSED] == slot.mark | 1:
        end(board, slot)
        return False
    return True


def end(board: Board, slot: Slot) -> None:
    """Say that a publication is over."""
    if board.is_latest(slot):
        board.cells[slot.first + PUBLISHING] = 0


def close(board: Board, slot: Slot) -> None:
    """Have nothing more published of a task's progress, and wait for what is under way.

    For the task's side, before its outcome is stored. A main process that is paused in the middle
    of a publication is not waited for longer than 5 s.
    """
    board.cells[slot.first + CLOSED] = slot.mark | 1
    settle_memory()
    ends, patience = host_seconds() + PATIENCE, threading.Event()
    while board.cells[slot.first + PUBLISHING] == slot.mark | 1 and host_seconds() < ends:
        patience.wait(LOOK_INTERVAL)


def settle_memory() -> None:
    """Let what was written be seen by other processes before anything else is read.

    Taking a lock, any lock, is what Python has for that; this one is nobody else's.
    """
    lock = threading.Lock()
    lock.acquire()
    lock.release()
