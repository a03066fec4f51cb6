"""Ends tasks that say nothing for too long, so that they hold neither a message nor a slot.

::

    silent too long ─► the log says what it does ─► ended, its message released ─► slot is free
                                                └─► cannot be ended: disowned   ─► slot is taken
    every slot taken by a disowned task ─► the worker leaves with an error

A disowned task has no lease any more: it can neither complete nor store a result, but nothing
takes its place, so a worker that has only such slots is of no use and its supervisor has to
replace it. How long is too long is :func:`ends_at`.

In a thread of its own: a process that is killed takes its time, and other leases go on meanwhile.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from celery_lease.core import board as beatboard
from celery_lease.core.board import Outcome
from celery_lease.core.lease import State
from celery_lease.core.policy import Mode, OnLost
from celery_lease.worker import notices
from celery_lease.worker.diagnosis import Doing
from celery_lease.worker.held import Ending

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_lease.core.lease import Lease
    from celery_lease.worker.compat.pools import Pool
    from celery_lease.worker.held import Held
    from celery_lease.worker.leases import Leases

logger = logging.getLogger(__name__)

#: Bounds of the wait between two looks, in seconds.
SHORTEST_WAIT, LONGEST_WAIT = 0.05, 1.0
#: Seconds between two looks after which the watchdog, and likely its tasks, did not run.
SLEPT = 3.0
#: Seconds that a worker has to stop by itself before it leaves disowned tasks behind.
LEAVING = 5.0

#: The names under which the counters are known.
STALLED_COUNT = "watchdog.stalled.count"
DISOWNED_COUNT = "watchdog.disowned.count"


def ends_at(lease: Lease, beat: float, quiet_until: float, awake_since: float) -> float:
    """Return when a task that stays as silent as it is has to be ended; infinity: never.

    Args:
        lease: Its lease, held or lost.
        beat: The task's last beat, or its start.
        quiet_until: The end of the quiet period that it declared.
        awake_since: When the watchdog began to look without a break. A host that was suspended
            lets its tasks find out by themselves first, as if they had beaten then.
    """
    policy = lease.policy
    threshold = policy.watchdog_threshold
    if policy.mode is Mode.OBSERVE or (threshold is None and policy.on_lost is OnLost.CONTINUE):
        return math.inf
    if policy.mode is Mode.DAEMON:
        # Silent by nature; but it cannot be told of a loss either, and "abort" is what was asked.
        return awake_since if lease.state is State.LOST else math.inf
    patience = policy.extension if threshold is None else threshold
    return max(max(beat, awake_since) + patience, quiet_until)


class Watchdog:
    """For one thread; shares ``leases``, under its lock."""

    def __init__(self, leases: Leases, pool: Pool) -> None:
        self.stalled = self.disowned = 0  #: since the worker started
        self._leases, self._pool, self._clock = leases, pool, leases.clock
        self._awake_since = self._looked = self._clock.now()
        self._disowned: set[str] = set()
        self._leaves_at: float | None = None

    @property
    def stuck(self) -> int:
        """How many slots are taken by tasks that it could not end."""
        return len(self._disowned)

    def counters(self) -> Mapping[str, int]:
        """Return the values by their names."""
        return {STALLED_COUNT: self.stalled, DISOWNED_COUNT: self.disowned}

    def run_once(self) -> float:
        """Look at every running task once, end what is due; return the seconds until the next."""
        now = self._clock.now()
        if now - self._looked > SLEPT:
            self._awake_since = now
        wait = self._look(now)
        if self._disowned:
            self._leave_if_useless(now)
        self._looked = self._clock.now()
        return min(max(wait, SHORTEST_WAIT), LONGEST_WAIT)

    def _look(self, now: float) -> float:
        next_due = math.inf
        for held in self._leases.running():
            due = self._due(held)
            if due <= now:
                self._deal_with(held)
            else:
                next_due = min(next_due, due)
        return next_due - now

    def _due(self, held: Held) -> float:
        """Return when a running task is to be ended."""
        board, slot = self._leases.board, held.slot
        if slot is None or held.pid is None or board.read_outcome(slot) is not Outcome.UNTOLD:
            return math.inf  # it ended, or the pool has not told yet who runs it
        quiet_until = board.read_time(slot, beatboard.QUIET)
        return ends_at(held.lease, self._last_sign(held), quiet_until, self._awake_since)

    def _deal_with(self, held: Held) -> None:
        """End one task, unless it shows while it is looked at that it goes on."""
        seen = self._pool.diagnose(held)
        now = self._clock.now()
        if seen.doing is Doing.GONE or not self._is_still_due(held, now):
            return
        silence = now - self._last_sign(held)
        notices.stalled(held, silence, seen)
        tag = held.lease.claim.tag

        def release() -> None:
            self._leases.hand_back([tag], orderly=False, ending=Ending.STALLED)

        ended = self._pool.end(held, release)
        self.stalled += 1
        if not ended:
            self.disowned += 1
            self._disowned.add(tag)
            notices.disowned(held)
        self._leases.tally.stalled(held, silence, str(seen), ended=ended)

    def _is_still_due(self, held: Held, now: float) -> bool:
        """Whether the process still runs this task, and no later one that must not be hit."""
        if not self._leases.knows(held.lease.claim.tag) or self._due(held) > now:
            return False
        since = self._last_sign(held)
        return not self._pool.alone or not any(
            other.pid in (None, held.pid) and self._leases.started_at(other) > since
            for other in self._leases.running()
        )

    def _last_sign(self, held: Held) -> float:
        board, slot = self._leases.board, held.slot
        if slot is None:
            return 0.0
        return max(board.read_time(slot, cell) for cell in (beatboard.BEAT, beatboard.STARTED))

    def _leave_if_useless(self, now: float) -> None:
        """End a worker that has only disowned tasks left: one without slots, or one that stops."""
        self._disowned &= self._pool.running()
        if self._pool.stopping():
            self._leaves_at = self._leaves_at or now + LEAVING
            if self._disowned and now >= self._leaves_at and not len(self._leases):
                self._pool.leave()
        elif len(self._disowned) >= self._pool.slots():
            logger.critical(
                "every slot (%d) is taken by a task that cannot be ended: the worker leaves",
                self._pool.slots(),
            )
            self._leases.door_closed = True
            self._leases.hand_back_unstarted()
            self._pool.stop()
