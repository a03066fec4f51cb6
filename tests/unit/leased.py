"""A leased context as a worker would make one, with the keeper's side in the test's hands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_lease.board import BEAT, PROGRESS, Board, Slot
from celery_lease.core.clock import host_seconds
from celery_lease.core.ticket import Ticket
from celery_lease.task.current import leased_context

if TYPE_CHECKING:
    from celery_lease.task.context import ToolContext


class LeasedRun:
    """One lease on a board of its own, and the context of its task."""

    def __init__(self, seconds: float = 1000.0, **ticket: Any) -> None:
        self.board = Board.create(8)
        self.slot: Slot = self.board.lend()
        self.board.allow(self.slot, host_seconds() + seconds)
        written = {
            "board": self.board.address,
            "slot": self.slot.index,
            "generation": self.slot.generation,
            "tag": "tag#1",
            "token": 41,
            "deliveries": 3,
            "extension": 300.0,
            "on_lost": "abort",
            "mode": "heartbeat",
            "worker": "w1@host:1:abc",
            **ticket,
        }
        self.ticket = Ticket.from_dict(written)
        self.context: ToolContext = leased_context(self.ticket, "task-1")
        self.context._start()

    @property
    def last_beat(self) -> float:
        """When the task last beat, as the keeper reads it; 0.0 for never."""
        return self.board.read_time(self.slot, BEAT)

    @property
    def reports(self) -> int:
        """How often the task told its progress."""
        return int(self.board.numbers[self.slot.first + PROGRESS])

    def silence(self) -> None:
        """Make the last beat look ten seconds old."""
        self.board.write_time(self.slot, BEAT, host_seconds() - 10)

    @property
    def beats_lately(self) -> bool:
        """Whether the task beat since :meth:`silence`."""
        return host_seconds() - self.last_beat < 9

    def expire(self) -> None:
        """Let the lease expire as if time had passed, unheard by any keeper."""
        self.board.allow(self.slot, host_seconds() - 0.001)

    def take_over(self) -> Slot:
        """End the lease and give its record to another one, far from expiry."""
        self.board.free(self.slot)
        while (slot := self.board.lend()).index != self.slot.index:
            self.board.free(slot)
        self.board.allow(slot, host_seconds() + 1000)
        return slot
