"""Shows tasks that the worker's main process stood still for longer than their lease.

The keeper writes on the board when its next look is due. A task that finds that time long past
knows that nothing ran in that process: C code of one task kept the interpreter's lock or never
yielded, or the host was busy or suspended. Three cells of record 0, which is never lent, in seconds
of the host's clock; the keeper is their only writer, any task reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_lease.board import Board

#: Cells of record 0, after the board's own: when the keeper's next look is due (0: it is looking),
#: and the length and the end of the last standstill.
DUE, LENGTH, ENDED = range(3, 6)
#: Seconds by which a look may be late on a busy host.
LATE = 1.0


def looks(board: Board, now: float) -> None:
    """Write that the keeper looks, and a standstill if it is late."""
    due = board.numbers[DUE]
    if due and now - due >= LATE:
        board.numbers[LENGTH] = now - due
        board.numbers[ENDED] = now
    board.numbers[DUE] = 0.0  # last: a task may look in between


def rests(board: Board, until: float) -> None:
    """Write when the keeper's next look is due."""
    board.numbers[DUE] = until


def since(board: Board, beat: float, now: float) -> float:
    """Return the seconds for which the process stood still after a *beat*; 0.0: it did not."""
    due: float = board.numbers[DUE]
    if due and now - due >= LATE:  # it still stands still, or the keeper has not run since
        return now - due
    length: float = board.numbers[LENGTH]
    return length if board.numbers[ENDED] > beat else 0.0
