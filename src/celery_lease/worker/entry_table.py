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
from celery_lease.board import Board, spans, standstill, starting
from celery_lease.core.loss import FLAG_RELEASED, FLAGS_ENDED
from celery_lease.worker import fork_safety
from celery_lease.worker.paces import Paces
from celery_lease.worker.reserved import ReservedLeases
from celery_lease.worker.telemetry.stats import LeaseStats

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_lease.core.clock import Clock
    from celery_lease.core.lease import State
    from celery_lease.worker.entries import Ending, LeaseEntry


class EntryTable:
    """The leases of a worker, by their tags."""

    def __init__(self, board: Board, clock: Clock, worker_id: str) -> None:
        self.board = board
        self.clock = clock
        self.worker_id = worker_id
        #: Guards the table and the leases in it; see the module. Reentrant, because Celery's cold
        #: shutdown rejects requests inside a signal handler, in the thread that it interrupted.
        self.lock = threading.RLock()
        self.stats = LeaseStats(worker_id, clock)  #: counts and events of leases; under the lock
        self.endings = self.stats.endings
        self.paces = Paces()  #: how tasks beat; under the lock
        self.shortest = math.inf  #: length of the shortest lease so far, in seconds; under the lock
        #: No lease for a while: threads look less often. The keeper sets it, under the lock; the
        #: main thread ends it when it has put a lease here, and wakes them.
        self.resting = False
        self._entries: dict[str, LeaseEntry] = {}
        self._lent: dict[str, LeaseEntry] = {}  # those with a slot
        self.reserved = ReservedLeases()  #: the others; under the lock
        fork_safety.guard(self.lock)

    def entries(self) -> Iterable[LeaseEntry]:
        """Return all leases; the caller holds :attr:`lock` for as long as it uses them."""
        return self._entries.values()

    def in_pool(self) -> Iterable[LeaseEntry]:
        """Return the leases whose task was given to the pool; under :attr:`lock`, as above."""
        return self._lent.values()

    def running(self) -> list[LeaseEntry]:
        """Return the leases whose task runs."""
        with self.lock:
            return [entry for entry in self.in_pool() if self._has_started(entry)]

    @property
    def lost_and_running(self) -> int:
        """The number of lost leases whose task still runs."""
        with self.lock:
            return sum(entry.lease.lost is not None for entry in self._entries.values())

    def knows(self, tag: str) -> bool:
        """Whether the lease has not left this worker yet."""
        return tag in self._entries

    def keeps(self, tag: str) -> bool:
        """Return whether a task goes on after its channel is closed."""
        with self.lock:
            entry = self._entries.get(tag)
            return entry is not None and self._has_started(entry)

    def is_lost(self, tag: str) -> bool:
        """Whether this worker must not act under the lease any more."""
        with self.lock:
            entry = self._entries.get(tag)
            return entry is None or self._is_over(entry)

    def started_at(self, entry: LeaseEntry) -> float:
        """Return when the task began to run, as its process wrote it; 0.0: it has not."""
        return self.board.read_time(entry.slot, beatboard.STARTED) if entry.slot else 0.0

    def stood_still(self, entry: LeaseEntry) -> float:
        """Return the seconds for which this process stood still after the last beat of a lease."""
        return standstill.since(self.board, entry.lease.beat, self.clock.now())

    def set_flags(self, entry: LeaseEntry, flags: int) -> None:
        """Set flags on a task's record, which its next beat reads."""
        with self.lock:
            if entry.slot is not None:
                self.board.flag(entry.slot, flags)

    def __len__(self) -> int:
        return len(self._entries)

    def _put(self, entry: LeaseEntry) -> None:
        """Store a new lease; the caller holds the lock."""
        self._entries[entry.lease.claim.tag] = entry
        self.reserved.put_off(entry, self.clock.now())
        self.shortest = min(self.shortest, entry.lease.policy.extension)

    def _take(self, tag: str, state: State, ending: Ending) -> LeaseEntry | None:
        if tag not in self._entries:  # as at Celery's own acknowledgement, after the lease's end
            return None
        with self.lock:
            entry = self._entries.pop(tag, None)
            if entry is None:
                return None
            if self._lent.pop(tag, None) is None:
                self.reserved.remove(entry)
            entry.ending = ending = ending.of(entry.lease)
            self.stats.ended(entry.lease, ending, entry.why)
            self._note_pace(entry)
            released = FLAG_RELEASED if entry.lease.is_held else 0
            entry.lease.end(state)
            if entry.slot is not None:
                self.board.free(entry.slot, FLAGS_ENDED | released)
            return entry

    def _note_pace(self, entry: LeaseEntry) -> None:
        started = entry.lease.started_at or self.started_at(entry)
        beat = self.board.read_time(entry.slot, beatboard.BEAT) if entry.slot else 0.0
        entry.beats += spans.has_beaten(self.board, entry.slot)
        self.paces.ended(entry, started, beat, self.clock.now())

    def _withdraw(self, entry: LeaseEntry) -> bool:
        """Prevent the start of a task; False: it has started."""
        return entry.slot is None or starting.withdraw(self.board, entry.slot)

    def _has_started(self, entry: LeaseEntry) -> bool:
        return entry.pid is not None or bool(self.started_at(entry))

    def _is_over(self, entry: LeaseEntry) -> bool:
        """Whether a lease is lost, or past its deadline: the keeper's next pass marks it so."""
        return not entry.lease.is_held or self.clock.now() >= entry.lease.deadline
