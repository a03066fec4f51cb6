"""The spans of a run, from its acceptance to its stored outcome, and the proof of progress in each.

::

    STARTING ──► BODY ──► STORING ──► its outcome is on the board: the message is settled at once
    the living   beats    the living   later steps (hooks, signals) run without a lease
    process, for          process
    one extension

Before the body Celery sends ``task_prerun`` and calls ``before_start``, which may also beat; after
it Celery publishes links, stores the outcome and calls errbacks. No code of authors can beat there.
"""

from __future__ import annotations

from enum import IntEnum

from celery_lease.board import FLAG_BITS, FLAG_MASK, IN_SPAN, Board, Slot


class Span(IntEnum):
    """The span that a run is in."""

    STARTING = 0
    BODY = 1
    STORING = 2
    RETRYING = 3  #: storing, after a first attempt that failed, and that the process has logged

    @property
    def stores(self) -> bool:
        """Whether the body has returned."""
        return self >= Span.STORING


#: Beside the span in its cell: the body has returned, and it beat.
BEATEN = 1 << 7


def enter(board: Board, slot: Slot, span: Span, *, beaten: bool = False) -> None:
    """Write that the run has entered a span, and that its body beat. For the task's side."""
    board.cells[slot.first + IN_SPAN] = slot.mark | span | (BEATEN if beaten else 0)


def current(board: Board, slot: Slot | None) -> Span:
    """Return the run's span; the first one if it has written none."""
    return Span(_written(board, slot) & ~BEATEN)


def has_beaten(board: Board, slot: Slot | None) -> bool:
    """Whether the run's body has returned, and beat at least once."""
    return bool(_written(board, slot) & BEATEN)


def _written(board: Board, slot: Slot | None) -> int:
    value = 0 if slot is None else board.cells[slot.first + IN_SPAN]
    return value & FLAG_MASK if slot and value >> FLAG_BITS == slot.generation else 0


def proof_of_life(span: Span, started_at: float, extension: float, now: float) -> float:
    """Return the time up to which the process's life counts as beats; 0.0: it does not."""
    if span.stores:
        return now
    return min(now, started_at + extension) if span is Span.STARTING and started_at else 0.0
