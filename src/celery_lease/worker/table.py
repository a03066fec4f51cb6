"""The table under the registry of leases: which messages this worker holds, and its one lock.

Touched by the main thread (messages arrive, requests start and end), by the pool's threads in
pools that have some, and by the keeper. One lock guards the table, the leases in it and the gates
of their records; it is held for work on the table only, never across a broker call, a callback or
a log line, and is taken around a fork so that no child is born while it is held.

Invariant: the record of a task is flagged before its lease leaves the table: a record that was
lent is never open after that.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from celery_lease import board as beatboard
from celery_lease.board import standstill, starting
from celery_lease.core.loss import FLAG_RELEASED, FLAGS_ENDED
from celery_lease.worker import forks
from celery_lease.worker.paces import Paces
from celery_lease.worker.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_lease.board import Board
    from celery_lease.core.clock import Clock
    from celery_lease.core.lease import State
    from celery_lease.worker.held import Ending, Held


class Table:
    """The leases of a worker, by their tags."""

    def __init__(self, board: Board, clock: Clock, worker_id: str) -> None:
        self.board = board
        self.clock = clock
        self.worker_id = worker_id
        #: Guards the table and the leases in it; see the module. Reentrant, because Celery's cold
        #: shutdown rejects requests inside a signal handler, in the thread that it interrupted.
        self.lock = threading.RLock()
        self.tally = Tally(worker_id, clock)  #: counts and events of leases; under the lock
        self.endings = self.tally.endings
        self.paces = Paces()  #: how tasks beat; under the lock
        self.shortest = math.inf  #: length of the shortest lease so far, in seconds; under the lock
        self._held: dict[str, Held] = {}
        forks.guard(self.lock)

    def held(self) -> Iterable[Held]:
        """Return all leases; the caller holds :attr:`lock` for as long as it uses them."""
        return self._held.values()

    def running(self) -> list[Held]:
        """Return the leases whose task runs."""
        with self.lock:
            return [held for held in self._held.values() if self._has_started(held)]

    @property
    def lost_and_running(self) -> int:
        """The number of lost leases whose task still runs."""
        with self.lock:
            return sum(held.lease.lost is not None for held in self._held.values())

    def knows(self, tag: str) -> bool:
        """Whether the lease has not left this worker yet."""
        return tag in self._held

    def keeps(self, tag: str) -> bool:
        """Return whether a task goes on after its channel is closed."""
        with self.lock:
            held = self._held.get(tag)
            return held is not None and self._has_started(held)

    def is_lost(self, tag: str) -> bool:
        """Whether this worker must not act under the lease any more."""
        with self.lock:
            held = self._held.get(tag)
            return held is None or self._is_over(held)

    def started_at(self, held: Held) -> float:
        """Return when the task began to run, as its process wrote it; 0.0: it has not."""
        return self.board.read_time(held.slot, beatboard.STARTED) if held.slot else 0.0

    def stood_still(self, held: Held) -> float:
        """Return the seconds for which this process stood still after the last beat of a lease."""
        return standstill.since(self.board, held.lease.beat, self.clock.now())

    def set_flags(self, held: Held, flags: int) -> None:
        """Set flags on a task's record, which its next beat reads."""
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
            held.ending = ending = ending.of(held.lease)
            self.tally.ended(held.lease, ending, held.why)
            self._note_pace(held)
            released = FLAG_RELEASED if held.lease.is_held else 0
            if held.lease.is_held:
                held.lease.end(state)
            if held.slot is not None:
                self.board.flag(held.slot, FLAGS_ENDED | released)
                self.board.free(held.slot)
            return held

    def _note_pace(self, held: Held) -> None:
        started = held.lease.started_at or self.started_at(held)
        beat = self.board.read_time(held.slot, beatboard.BEAT) if held.slot else 0.0
        self.paces.ended(held, started, beat, self.clock.now())

    def _withdraw(self, held: Held) -> bool:
        """Prevent the start of a task; False: it has started."""
        return held.slot is None or starting.withdraw(self.board, held.slot)

    def _has_started(self, held: Held) -> bool:
        return held.pid is not None or bool(self.started_at(held))

    def _is_over(self, held: Held) -> bool:
        """Whether a lease is lost, or past its deadline: the keeper's next pass marks it so."""
        return not held.lease.is_held or self.clock.now() >= held.lease.deadline
