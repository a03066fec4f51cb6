"""How a stopping worker lets go of its leases: at once, when they are done, or in bounded time.

::

    asked to stop ─► what waits goes back ─► interruptible tasks are told
                                          ─► each task has its lease_shutdown_timeout;
                                             after a cold shutdown's signal it has none
                                          ─► out of time: told at its next beat ─► ended, released
                  ─► nothing runs, and the broker is silent for 10 s: the worker leaves

Driven by the keeper's thread, because the main loop stands still in every kind of shutdown:
in a warm one it waits for the pool, in a soft one it sleeps inside the signal handler, in a solo
worker it runs the task. So nothing here relies on it: what a task process has finished is read
from the beat board and acknowledged from here, and what it has not, is ended from here.

State: ``asked_at`` is set once, by whoever notices first (a signal handler, a remote command, the
main loop); everything else is touched by the keeper's thread only.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_lease.core import board as beatboard
from celery_lease.worker.held import Ending

if TYPE_CHECKING:
    from celery_lease.worker.compat.pools import Ender
    from celery_lease.worker.held import Held
    from celery_lease.worker.leases import Leases

logger = logging.getLogger(__name__)

#: Seconds between two looks at the tasks that a stopping worker waits for.
LOOK_INTERVAL = 0.1
#: Seconds that a task has between being told to hand over and being ended.
TOLD = 2.0
#: Seconds that a worker without tasks waits for an answer of its broker before it leaves.
SILENCE = 10.0


@dataclass(slots=True)
class Shutdown:
    """Ends the leases of a stopping worker; see the module."""

    leases: Leases
    ender: Ender
    asked: bool = False  #: set by :meth:`ask`, never unset
    _since: float | None = None
    _latest: float | None = None  # when no task has any time left, whatever its own option says
    _before: Counter[Ending] = field(default_factory=Counter)
    _disowned: int = 0
    _told: set[str] = field(default_factory=set)
    _reported: bool = False
    _hangs_since: float | None = None

    def ask(self) -> None:
        """Close the door, and begin at the keeper's next pass.

        Safe in a signal handler: no lock, no I/O.
        """
        if not self.asked:
            self._before = Counter(self.leases.endings)
            self.asked = self.leases.door_closed = True

    def hurry(self, seconds: float = 0.0) -> None:
        """Give no task more than *seconds* from now on. Safe in a signal handler."""
        latest = self.leases.clock.now() + seconds
        self._latest = latest if self._latest is None else min(latest, self._latest)

    def run_once(self) -> float:
        """Do what is due; return the seconds until the next look."""
        if self._since is None:
            self._begin()
        self.leases.settle_outcomes()
        self.leases.hand_back_unstarted()  # also what arrived since
        for held in self.leases.running():
            self._press(held)
        if not len(self.leases):
            self.report()
            if self._disowned or self._is_stuck():
                self.ender.leave()
        return LOOK_INTERVAL

    def _begin(self) -> None:
        self._since = self.leases.clock.now()
        self.leases.door_closed = True  # again: a drain may have ended just then
        self.leases.board.announce_shutdown()

    def _press(self, held: Held) -> None:
        """Tell a task that may be interrupted or is out of time, and end it if it does not react.

        At each pass: a process may have taken a task from the pool's queue just as the door closed.
        """
        waited, now = self._waited(), self.leases.clock.now()
        over = waited - held.lease.policy.shutdown_timeout
        if self._latest is not None:
            over = max(over, now - self._latest)
        if over >= TOLD:
            self._end(held, waited)
        elif over >= 0 or held.lease.policy.interruptible:
            self._tell(held)

    def _waited(self) -> float:
        return 0.0 if self._since is None else self.leases.clock.now() - self._since

    def _is_stuck(self) -> bool:
        """Whether nothing keeps the worker but a broker that has been silent for long."""
        if not self.ender.hangs():
            self._hangs_since = None
            return False
        now = self.leases.clock.now()
        if self._hangs_since is None:
            self._hangs_since = now
        stuck = now - self._hangs_since >= SILENCE
        if stuck:
            logger.critical("the broker has not answered for %g s: the worker leaves", SILENCE)
        return stuck

    def _tell(self, held: Held) -> None:
        if held.lease.claim.tag not in self._told:
            self._told.add(held.lease.claim.tag)
            self.leases.tell(held, beatboard.FLAG_SHUTDOWN)

    def _end(self, held: Held, waited: float) -> None:
        lease = held.lease
        logger.warning(
            "task %s[%s] still runs %g s after the worker was asked to stop: ended, "
            "its message returned",
            lease.name,
            lease.task_id,
            round(waited, 1),
            extra=held.fields,
        )

        def release() -> None:
            self.leases.hand_back([lease.claim.tag], ending=Ending.ENDED)

        if not self.ender.end(held, release):
            self._disowned += 1

    def report(self) -> None:
        """Say once what became of the leases since the worker was asked to stop."""
        if not self.asked:
            return
        done = Counter(self.leases.endings)
        done.subtract(self._before)
        if done[Ending.ENDED]:  # also by Celery's cold shutdown
            self.ender.failed()  # again at the very end: Celery's own stop sets the exit code too
        if self._reported:
            return
        self._reported = True
        logger.info("leases at shutdown: %s", ", ".join(f"{done[each]} {each}" for each in Ending))
