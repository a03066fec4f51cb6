"""The relay's app on a beat board that has room for three tasks at once."""

from __future__ import annotations

from celery_lease.board import Board
from celery_lease.worker import steps
from harness.app_relay import app

__all__ = ["app"]

ROOM = 3


class SmallBoard(Board):
    """Has few records, whatever was asked for; record 0 is the worker's own."""

    @classmethod
    def create(
        cls, slots: int = ROOM + 1, *, epoch: float | None = None, named: bool = False
    ) -> Board:
        return Board.create(slots, epoch=epoch, named=named)


steps.Board = SmallBoard  # type: ignore[attr-defined]
