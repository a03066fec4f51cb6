"""Ends the leases of a stopping worker, in bounded time.

::

    asked to stop ─► reserved messages go back ─► interruptible tasks are asked to hand over
                                               ─► each task has its lease_shutdown_timeout;
                                                  after a cold shutdown's signal it has none
                                               ─► out of time: asked at its next beat
                                               ─► still running: ended, requeued
                  ─► nothing runs, and the broker is silent for 10 s: the worker exits

Driven by the keeper's thread, because the main loop stands still in every kind of shutdown: in a
warm one it waits for the pool, in a soft one it sleeps inside the signal handler, in a solo worker
it runs the task. So nothing here relies on it: the outcomes of tasks are read from the board and
acknowledged from here, and tasks without an outcome are ended from here.

State: ``_before`` is set once, by the first to notice (a signal handler, a remote command, the
main loop), and ``_forced`` by whichever thread learns first that a task was ended; everything else
is touched by the keeper's thread only.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_lease.board import spans
from celery_lease.core.loss import FLAG_OUT_OF_TIME, FLAG_SHUTDOWN
from celery_lease.worker.entries import REVOKED, Ending, LeaseEntry

if TYPE_CHECKING:
    from celery_lease.worker.pools import Pool
    from celery_lease.worker.registry import LeaseRegistry

logger = logging.getLogger(__name__)

#: Seconds between two looks at the tasks that a stopping worker waits for.
LOOK_INTERVAL = 0.1
#: Seconds that a task has between the request to hand over and its end.
HAND_OVER_TIME = 2.0
#: Seconds that a worker without tasks waits for an answer of its broker before it exits.
SILENCE = 10.0
#: How a lease ends for the exclusive key of its task.
FOR_KEYS = frozenset({Ending.PARKED, *REVOKED.values()})


@dataclass(slots=True)
class Shutdown:
    """Ends the leases of a stopping worker; see the module."""

    leases: LeaseRegistry
    pool: Pool
    _since: float | None = None
    _latest: float | None = None  # when the time of all tasks is over, regardless of their option
    _before: Counter[Ending] | None = None  # endings until it was asked to stop
    _disowned: int = 0
    _forced: bool = False  # a task was ended, even if its lease is lost
    _flagged: set[tuple[str, int]] = field(default_factory=set)  # tags, and their flags
    _reported: bool = False
    _hangs_since: float | None = None

    def ask(self) -> None:
        """Take nothing more, and begin at the keeper's next pass.

        Safe in a signal handler: no lock, no I/O.
        """
        if self._before is None:
            self._before = Counter(self.leases.endings)
        self.leases.intake.stop()

    def hurry(self, seconds: float = 0.0) -> None:
        """Limit the remaining time of all tasks to *seconds*. Safe in a signal handler."""
        latest = self.leases.clock.now() + seconds
        self._latest = latest if self._latest is None else min(latest, self._latest)

    def run_once(self) -> float:
        """Do what is due; return the seconds until the next look."""
        if self._since is None:
            self._begin()
        self.leases.settle_outcomes()
        self.leases.requeue_unstarted()  # also those that arrived since
        for entry in self.leases.running():
            self._press(entry)
        if not len(self.leases):
            self.report()
            if self._disowned or self._is_stuck():
                self.pool.leave()
        return LOOK_INTERVAL

    def _begin(self) -> None:
        self._since = self.leases.clock.now()
        self.leases.board.announce_shutdown()

    def _press(self, entry: LeaseEntry) -> None:
        """Flag a task that is interruptible or out of time, and end it if it does not react.

        A task that has ended has all of its time to store its outcome, and gets a flag after that.

        At each pass: a process may have taken a task from the pool's queue at the same moment.
        """
        waited, now = self._waited(), self.leases.clock.now()
        over = waited - entry.lease.policy.shutdown_timeout
        if self._latest is not None:
            over = max(over, now - self._latest)
        if over >= HAND_OVER_TIME:
            self._end(entry, waited)
        elif over >= 0 and spans.current(self.leases.board, entry.slot).stores:
            self._flag(entry, FLAG_OUT_OF_TIME)
        elif over >= 0 or entry.lease.policy.interruptible:
            self._flag(entry, FLAG_SHUTDOWN)

    def _waited(self) -> float:
        return 0.0 if self._since is None else self.leases.clock.now() - self._since

    def _is_stuck(self) -> bool:
        """Whether the worker only waits for a broker that has been silent for :data:`SILENCE`."""
        if not (place := self.pool.hangs_in()):
            self._hangs_since = None
            return False
        now = self.leases.clock.now()
        if self._hangs_since is None:
            self._hangs_since = now
        stuck = now - self._hangs_since >= SILENCE
        if stuck:
            text = "the broker has not answered for %g s: the worker exits (it waits in %s)"
            logger.critical(text, SILENCE, place)
        return stuck

    def _flag(self, entry: LeaseEntry, flags: int) -> None:
        if (flagged := (entry.lease.claim.tag, flags)) not in self._flagged:
            self._flagged.add(flagged)
            self.leases.set_flags(entry, flags)

    def _end(self, entry: LeaseEntry, waited: float) -> None:
        tag = entry.lease.claim.tag
        logger.warning(
            "task %s[%s] still runs %g s after the worker was asked to stop: ended, "
            "its message returned",
            *entry.task,
            round(waited, 1),
            extra=entry.fields,
        )
        storing = spans.current(self.leases.board, entry.slot).stores

        def release() -> None:
            if self.leases.settle_outcome(entry):  # in the meantime
                return
            if storing:
                self.leases.not_stored(tag)
            else:
                self._forced = True
                self.leases.requeue([tag], ending=Ending.ENDED)

        if not self.pool.end(entry, release):
            self._disowned += 1

    def report(self) -> None:
        """Log once how the leases ended since the worker was asked to stop."""
        if self._before is None:
            return
        done = Counter(self.leases.endings)
        done.subtract(self._before)
        if self._forced or done[Ending.ENDED]:  # by Celery's cold shutdown
            self.pool.failed()  # again at the very end: Celery's own stop sets the exit code too
        if self._reported:
            return
        self._reported = True
        done[Ending.LOST] += self.leases.lost_and_running
        logger.info("leases at shutdown: %s", _in_words(done))


def _in_words(done: Counter[Ending]) -> str:
    """Return the number of each ending; losses as one number, with details where they are known.

    Those for an exclusive key are left out where there are none.
    """
    lost = sum(count for ending, count in done.items() if ending.is_loss)
    known = [f"{done[each]} {each}" for each in (Ending.PROCESS_DIED, Ending.STALLED) if done[each]]
    of_those = f" ({', '.join(known)})" if known else ""
    return ", ".join(
        f"{lost} {each}{of_those}" if each is Ending.LOST else f"{done[each]} {each}"
        for each in Ending
        if (each is Ending.LOST or not each.is_loss) and (done[each] or each not in FOR_KEYS)
    )
