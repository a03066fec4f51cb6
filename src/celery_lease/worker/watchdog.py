"""Ends tasks that are silent for too long, so that they hold neither a message nor a slot.

::

    silent too long ─► the log shows what it does ─► ended, its message returned ─► slot is free
                                                  └─► cannot be ended: disowned ─► slot is taken
    every slot taken by a disowned task ─► the worker exits with an error

A disowned task has no lease any more: it can neither complete nor store a result, but its slot is
not replaced. A worker that has only such slots is of no use, and its supervisor has to replace it.
:func:`ends_at` defines how long is too long.

It has a thread of its own: a killed process takes time to end, and other leases go on meanwhile.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from celery_lease import board as beatboard
from celery_lease.board import Outcome, spans
from celery_lease.board.spans import Span
from celery_lease.core.lease import Lease, State
from celery_lease.core.policy import Mode, OnLost
from celery_lease.worker import crashes
from celery_lease.worker.diagnosis import Doing
from celery_lease.worker.entries import Ending, LeaseEntry
from celery_lease.worker.telemetry import log_messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_lease.worker.pools import Pool
    from celery_lease.worker.registry import LeaseRegistry

logger = logging.getLogger(__name__)

#: Bounds of the wait between two looks, in seconds; wait in a worker that rests: the next lease
#: ends it.
SHORTEST_WAIT, LONGEST_WAIT, REST_WAIT = 0.05, 1.0, 60.0
#: Seconds between two looks after which the watchdog, and probably its tasks, did not run.
SLEPT = 3.0
#: Seconds after the loss of its lease that a task has to stop storing its outcome.
GIVES_UP = 5.0
#: Seconds that a worker has to stop by itself before it exits and leaves disowned tasks behind.
LEAVING = 5.0

#: The names of the counters.
STALLED_COUNT = "watchdog.stalled.count"
DISOWNED_COUNT = "watchdog.disowned.count"


def ends_at(
    lease: Lease, beat: float, quiet_until: float, awake_since: float, *, storing: bool = False
) -> float:
    """Return when a task has to be ended if it stays silent, in monotonic seconds; infinity: never.

    Args:
        lease: The task's lease, held or lost.
        beat: The task's last beat, or its start.
        quiet_until: The end of its declared quiet period.
        awake_since: When the watchdog began to look without a break. After a suspension of the
            host, tasks get time to find out by themselves, as if they had beaten at that moment.
        storing: The task has ended, and its outcome is being stored: it cannot beat any more.
    """
    policy = lease.policy
    threshold = policy.watchdog_threshold
    if policy.mode is Mode.OBSERVE or (threshold is None and policy.on_lost is OnLost.CONTINUE):
        return math.inf
    if storing:  # it looks at its lease between two tries
        return max(awake_since, lease.deadline + GIVES_UP) if lease.lost else math.inf
    if policy.mode is Mode.DAEMON:
        # Silent by nature; but a loss cannot reach it by a beat either, and "abort" was asked for.
        return awake_since if lease.state is State.LOST else math.inf
    allowed = policy.extension if threshold is None else threshold
    return max(max(beat, awake_since) + allowed, quiet_until)


class Watchdog:
    """Ends silent tasks. For one thread; shares ``leases``, under its lock."""

    def __init__(self, leases: LeaseRegistry, pool: Pool) -> None:
        self.stalled = self.disowned = 0  #: since the worker started
        self._leases, self._pool, self._clock = leases, pool, leases.clock
        self._awake_since = self._looked = self._clock.now()
        self._disowned: set[str] = set()
        self._leaves_at: float | None = None

    @property
    def stuck(self) -> int:
        """The number of slots that are taken by tasks which could not be ended."""
        return len(self._disowned)

    def counters(self) -> Mapping[str, int]:
        return {STALLED_COUNT: self.stalled, DISOWNED_COUNT: self.disowned}

    def run_once(self) -> float:
        """Look at all running tasks, end those that are due; return the seconds until the next."""
        now, running = self._clock.now(), self._leases.running()
        crashes.collect({entry.pid for entry in running if entry.pid is not None})
        if now - self._looked > SLEPT:
            self._awake_since = now
        wait = self._look(now, running)
        if self._disowned:
            self._leave_if_useless(now)
        self._looked = self._clock.now()
        rests = self._leases.resting and not self._disowned
        return REST_WAIT if rests else min(max(wait, SHORTEST_WAIT), LONGEST_WAIT)

    def _look(self, now: float, running: list[LeaseEntry]) -> float:
        next_due = math.inf
        for entry in running:
            due = self._due(entry)
            if due <= now:
                self._deal_with(entry)
            else:
                next_due = min(next_due, due)
        return next_due - now

    def _due(self, entry: LeaseEntry) -> float:
        """Return when a running task is to be ended, in monotonic seconds; infinity: never."""
        board, slot = self._leases.board, entry.slot
        if slot is None or entry.pid is None or board.read_outcome(slot) is not Outcome.UNREPORTED:
            return math.inf  # it ended, or the pool has not reported its process yet
        quiet_until = board.read_time(slot, beatboard.QUIET)
        return ends_at(
            entry.lease,
            self._last_sign(entry),
            quiet_until,
            self._awake_since,
            storing=spans.current(board, slot).stores,
        )

    def _deal_with(self, entry: LeaseEntry) -> None:
        """End one task, unless it shows a sign of life while it is diagnosed."""
        seen = self._pool.diagnose(entry)
        now = self._clock.now()
        if seen.doing is Doing.GONE or not self._is_still_due(entry, now):
            return
        silence, found_at = now - self._last_sign(entry), self._clock.wall().timestamp()
        log_messages.stalled(entry, silence, seen)
        tag = entry.lease.claim.tag

        cause = f"silent for {silence:.1f} s, {seen}"
        self._leases.note_loss(entry, cause, seen.stack)

        def release() -> None:
            self._leases.requeue([tag], orderly=False, ending=Ending.STALLED)

        ended = self._pool.end(entry, release)
        self.stalled += 1
        if not ended:
            self.disowned += 1
            self._disowned.add(tag)
            log_messages.disowned(entry)
        self._leases.stats.stalled(entry, silence, str(seen), ended=ended, at=found_at)

    def _is_still_due(self, entry: LeaseEntry, now: float) -> bool:
        """Whether the process still runs this task, and not a later one that must not be hit."""
        if not self._leases.knows(entry.lease.claim.tag) or self._due(entry) > now:
            return False
        since = self._last_sign(entry)
        return not self._pool.alone or not any(
            other.pid in (None, entry.pid) and self._leases.started_at(other) > since
            for other in self._leases.running()
        )

    def _last_sign(self, entry: LeaseEntry) -> float:
        board, slot = self._leases.board, entry.slot
        if slot is None:
            return 0.0
        beat = board.read_time(slot, beatboard.BEAT)
        # The pool may report a task before its process has written that it begins.
        started = self._leases.started_at(entry) or entry.lease.started_at or 0.0
        extension, now = entry.lease.policy.extension, self._clock.now()
        span = spans.current(board, slot)
        by_life = spans.proof_of_life(span, started, extension, now) if span is Span.STARTING else 0
        return max(beat, started, by_life)

    def _leave_if_useless(self, now: float) -> None:
        """Stop a worker that has only disowned tasks left: in all its slots, or when it stops."""
        self._disowned &= self._pool.running()
        if self._pool.stopping():
            self._leaves_at = self._leaves_at or now + LEAVING
            if self._disowned and now >= self._leaves_at and not len(self._leases):
                self._pool.leave()
        elif len(self._disowned) >= self._pool.slots():
            logger.critical(
                "every slot (%d) is taken by a task that cannot be ended: the worker exits",
                self._pool.slots(),
            )
            self._leases.intake.stop()
            self._leases.requeue_unstarted()
            self._pool.stop()
