"""Which messages this worker holds, and the one lock over it.

Touched by the main thread (messages arrive, requests start and end), by the pool's threads in
pools that have some, and by the keeper. One lock guards the table, the leases in it and the gates
of their records; it is held for table work only, never across a broker call, a callback or a log
line, and is taken around a fork so that no child is born while it is held.

Invariant: a task is told with the table entry that its lease has ended: a record that was lent is
never open after that.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from celery_lease.core import board as beatboard, starting
from celery_lease.worker import forks
from celery_lease.worker.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_lease.core.board import Board
    from celery_lease.core.clock import Clock
    from celery_lease.core.lease import State
    from celery_lease.worker.held import Ending, Held

#: What a task reads whose lease has ended under it: no asking the broker, it is not its own.
ENDED = beatboard.FLAG_LOST | beatboard.FLAG_TAKEN


class Table:
    """The leases of a worker, by their tags."""

    def __init__(self, board: Board, clock: Clock, worker_id: str) -> None:
        self.board = board
        self.clock = clock
        self.worker_id = worker_id
        #: Guards the table and the leases in it; see the module. Reentrant, because Celery's cold
        #: shutdown rejects requests inside a signal handler, in the thread that it interrupted.
        self.lock = threading.RLock()
        self.tally = Tally(worker_id, clock)  #: what of leases is counted; under the lock
        self.endings = self.tally.endings
        self.shortest = math.inf  #: lease so far, in seconds; under the lock
        self._held: dict[str, Held] = {}
        forks.guard(self.lock)

    def held(self) -> Iterable[Held]:
        """Return all leases; only for who holds :attr:`lock`, and only as long."""
        return self._held.values()

    def running(self) -> list[Held]:
        """Return the leases whose task runs."""
        with self.lock:
            return [held for held in self._held.values() if self._has_started(held)]

    def knows(self, tag: str) -> bool:
        """Whether the lease has not left this worker yet."""
        return tag in self._held

    def keeps(self, tag: str) -> bool:
        """Tell whether a task runs on although its channel closes."""
        with self.lock:
            held = self._held.get(tag)
            return held is not None and self._has_started(held)

    def is_lost(self, tag: str) -> bool:
        """Whether this worker must not act under the lease any more."""
        with self.lock:
            held = self._held.get(tag)
            return held is None or self._is_over(held)

    def started_at(self, held: Held) -> float:
        """Return when the task began to run, by its own word, or 0.0."""
        return self.board.read_time(held.slot, beatboard.STARTED) if held.slot else 0.0

    def tell(self, held: Held, flags: int) -> None:
        """Tell a task something at its next beat."""
        with self.lock:
            if held.slot is not None:
                self.board.flag(held.slot, flags)

    def __len__(self) -> int:
        return len(self._held)

    def _put(self, held: Held) -> None:
        with self.lock:
            self._held[held.lease.claim.tag] = held
            self.shortest = min(self.shortest, held.lease.policy.extension)

    def _take(self, tag: str, state: State, ending: Ending) -> Held | None:
        with self.lock:
            held = self._held.pop(tag, None)
            if held is None:
                return None
            self.tally.ended(held.lease, ending)
            if held.lease.is_held:
                held.lease.end(state)
            if held.slot is not None:
                self.board.flag(held.slot, ENDED)
                self.board.give_back(held.slot)
            return held

    def _withdraw(self, held: Held) -> bool:
        """Keep a task that has not started from doing so; False: it has."""
        return held.slot is None or starting.withdraw(self.board, held.slot)

    def _has_started(self, held: Held) -> bool:
        return held.pid is not None or bool(self.started_at(held))

    def _is_over(self, held: Held) -> bool:
        """Whether a lease is lost, or about to be found so: it is the keeper that loses them."""
        return not held.lease.is_held or self.clock.now() >= held.lease.deadline
