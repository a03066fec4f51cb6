"""Orders the end of a task and a publication of its progress, by cells on the board.

The main process stores progress, the task process stores the outcome, and the outcome must be the
last. Each side writes its own cell before it reads the other's, so at least one sees the other: a
publisher that sees an end gives up, and an end that sees a publication waits for it.
"""

from __future__ import annotations

import threading

from celery_lease.board import CLOSED, PUBLISHING, Board, Slot
from celery_lease.core.clock import host_seconds

#: Longest wait of an end for a publication, and the time between two looks, in seconds.
LONGEST_WAIT, LOOK_INTERVAL = 5.0, 0.002


def begin(board: Board, slot: Slot) -> bool:
    """Begin a publication of a task's progress; False: it is closed, do not publish.

    For the main process, which calls :func:`end` after True.
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
    """End a publication."""
    if board.is_latest(slot):
        board.cells[slot.first + PUBLISHING] = 0


def close(board: Board, slot: Slot) -> None:
    """Close a task's progress: no publication begins any more; wait for one under way.

    For the task's side, before its outcome is stored. The wait is at most 5 s, for a main process
    that is paused in the middle of a publication.
    """
    board.cells[slot.first + CLOSED] = slot.mark | 1
    settle_memory()
    ends, rest = host_seconds() + LONGEST_WAIT, threading.Event()
    while board.cells[slot.first + PUBLISHING] == slot.mark | 1 and host_seconds() < ends:
        rest.wait(LOOK_INTERVAL)


def settle_memory() -> None:
    """Make earlier writes visible to other processes before later reads.

    In Python taking any lock does that; this one is never shared.
    """
    lock = threading.Lock()
    lock.acquire()
    lock.release()
