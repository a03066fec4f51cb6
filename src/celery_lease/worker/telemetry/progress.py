"""Publishes the progress of tasks, as state ``PROGRESS`` in the result backend.

A thread of the main process reads it from the board: a beat does no I/O, and the keeper does not
wait. Each task at most every ``lease_publish_progress`` seconds, and only if it is new.

Invariant: no final state is overwritten. A run that ends closes its progress on the board before
its outcome is stored, and waits for a publication that is under way; so does the main process
before it stores the failure of a task. Both waits are bounded: a backend that is merely slow has
answered by then; one that is silent for longer may show ``PROGRESS`` last, of a task that has
failed.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_lease.board import Outcome, Progress, publishing
from celery_lease.core.secrets import masked
from celery_lease.task.outcome import margin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_lease.worker.entries import LeaseEntry
    from celery_lease.worker.registry import LeaseRegistry

logger = logging.getLogger(__name__)

#: The state that Celery's documentation uses as its example; Celery itself does not use it.
PROGRESS = "PROGRESS"
#: Bounds of the wait between two looks, in seconds.
SHORTEST_WAIT, LONGEST_WAIT = 0.1, 1.0


@dataclass(slots=True)
class _Published:
    """The last publication of one lease."""

    at: float
    reports: int


class Publisher:
    """Publishes progress. For one thread, except :meth:`close`."""

    def __init__(
        self,
        leases: LeaseRegistry,
        interval: float,
        store: Callable[..., None],
    ) -> None:
        """*store* takes a task's name, its id, the value to store, and its request."""
        self._leases, self._interval, self._store = leases, interval, store
        self._published: dict[str, _Published] = {}
        self._silent = False  #: the last publication failed, and the log says so
        #: Guards the two below; never held across a call of the backend.
        self._turn = threading.Condition()
        self._current: str | None = None
        self._closed: set[str] = set()

    def run_once(self) -> float:
        """Publish the progress that is due; return the seconds until the next look."""
        running = self._leases.running()
        tags = {entry.lease.claim.tag for entry in running}
        self._published = {tag: what for tag, what in self._published.items() if tag in tags}
        with self._turn:
            self._closed &= tags
        for entry in running:
            self._look(entry)
        return min(max(self._interval / 4, SHORTEST_WAIT), LONGEST_WAIT)

    def close(self, tag: str) -> None:
        """Stop publishing for a lease; wait, at most 5 s, for a publication under way.

        Call it before the main process stores a final state.
        """
        with self._turn:
            self._closed.add(tag)
            self._turn.wait_for(lambda: self._current != tag, publishing.LONGEST_WAIT)

    def _look(self, entry: LeaseEntry) -> None:
        board, slot, tag = self._leases.board, entry.slot, entry.lease.claim.tag
        now = self._leases.clock.now()
        last = self._published.get(tag)
        if slot is None or (last is not None and now - last.at < self._interval):
            return
        progress = board.read_progress(slot)
        if progress.reports == (0 if last is None else last.reports):
            return
        with self._may_publish(entry) as allowed:
            if allowed and self._publish(entry, progress):
                self._published[tag] = _Published(now, progress.reports)

    @contextmanager
    def _may_publish(self, entry: LeaseEntry) -> Iterator[bool]:
        """Yield whether a task's progress may be stored; the end of the task waits meanwhile."""
        board, slot, tag = self._leases.board, entry.slot, entry.lease.claim.tag
        with self._turn:
            self._current = None if tag in self._closed else tag
        try:
            if slot is None or self._current is None or not publishing.begin(board, slot):
                yield False
                return
            try:
                yield self._is_its_own(entry)
            finally:
                publishing.end(board, slot)
        finally:
            with self._turn:
                self._current = None
                self._turn.notify_all()

    def _is_its_own(self, entry: LeaseEntry) -> bool:
        """Whether this delivery still runs the task, and holds its lease while it is stored."""
        lease, slot = entry.lease, entry.slot
        left = lease.deadline - self._leases.clock.now()
        return (
            slot is not None
            and lease.is_held
            and left > margin(lease.policy.extension)
            and self._leases.board.read_outcome(slot) is Outcome.UNREPORTED
        )

    def _publish(self, entry: LeaseEntry, progress: Progress) -> bool:
        lease = entry.lease
        facts = {
            "done": progress.done,
            "total": progress.total,
            "note": progress.note,
            "deliveries": lease.claim.deliveries,
            "at": round(self._leases.clock.wall().timestamp(), 3),
        }
        try:
            self._store(lease.name, lease.task_id, facts, entry.request)
        except Exception as exc:  # noqa: BLE001  (as many ways to be away as there are backends)
            level = logging.DEBUG if self._silent else logging.WARNING
            logger.log(level, "progress of tasks is not published: %s", masked(exc))
            self._silent = True
            return False
        self._silent = False
        return True
