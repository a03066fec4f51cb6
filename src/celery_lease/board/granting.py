"""How a task that is to run once at most waits for its start, on the board.

A task process has it, and its message is not acknowledged yet: the main process does that, by the
lease that ends with it, and then says whether the task may start. A record whose task may start is
lent until its process has seen that: were it another's by then, nobody would run the message. A
process that cannot open the board would not see it, so nothing is acknowledged for one before it
has asked.
"""

from __future__ import annotations

import os
import threading
from collections import deque

from celery_lease.board import ASKED, GRANTED, STARTED, Board, Slot
from celery_lease.core.clock import host_seconds
from celery_lease.core.loss import FLAG_LOST, FLAGS_ENDED

#: Seconds between two looks: at first, and at most; each is a little longer than the one before.
FIRST_LOOK, LONGEST_LOOK, SLOWER = 0.0001, 0.01, 1.2
#: Seconds that a process which opens the board has to ask, right after its pool's report.
LATEST = 1.0
#: Records that are looked at with each grant, and seconds after which a process is taken for dead.
AT_ONCE, FORGOTTEN = 4, 3600.0


class Grants:
    """The records of tasks that may start, until that was seen. Guarded by its caller's lock."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._slots: deque[tuple[Slot, float]] = deque()

    def grant(self, slot: Slot, now: float) -> None:
        """Let a task start."""
        self._board.cells[slot.first + GRANTED] = slot.mark | 1
        self._slots.append((slot, now))
        self.sweep(now)

    def sweep(self, now: float) -> None:
        """Take some records back whose grants were seen, or never will be."""
        for _ in range(min(len(self._slots), AT_ONCE)):
            slot, since = self._slots.popleft()
            if self._board.read_time(slot, STARTED) or now - since > FORGOTTEN:
                self._board.free(slot)
            else:
                self._slots.append((slot, since))

    def __len__(self) -> int:
        return len(self._slots)


def is_asked(board: Board, slot: Slot) -> bool:
    """Whether the task's process reads the board; waits for it to show that. For the lender.

    A fork has inherited the board. Every other process can fail to open it, and then ends the task
    without a start.
    """
    if board.is_inherited:
        return True
    rest, seconds, left = threading.Event(), FIRST_LOOK, LATEST
    while not (asked := board.cells[slot.first + ASKED] == slot.mark | 1) and left > 0:
        rest.wait(seconds)
        left, seconds = left - seconds, min(seconds * SLOWER, LONGEST_LOOK)
    return asked


def refuse(board: Board, slot: Slot) -> None:
    """Keep the task from starting, and take the record back; for the process that lent it."""
    board.free(slot, FLAGS_ENDED)


def answer(board: Board, slot: Slot) -> bool | None:
    """Return whether the task may start; None: that is not decided yet."""
    if board.cells[slot.first + GRANTED] == slot.mark | 1:
        return True
    flags = board.read_flags(slot)
    return False if flags is None or flags & FLAG_LOST else None


def wait(board: Board, slot: Slot) -> bool:
    """Wait until it is decided whether the task may start; for its process.

    As long as the main process lives: it may be stopped, and acknowledge when it goes on.
    """
    parent, rest, seconds = os.getppid(), threading.Event(), FIRST_LOOK
    if board.owns(slot):
        board.cells[slot.first + ASKED] = slot.mark | 1
    while (granted := answer(board, slot)) is None:
        if os.getppid() != parent:
            return False
        rest.wait(seconds)
        seconds = min(seconds * SLOWER, LONGEST_LOOK)
    if granted:
        board.write_time(slot, STARTED, host_seconds())
    return granted
