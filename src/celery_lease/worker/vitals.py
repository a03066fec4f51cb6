"""What a worker's leases are doing, for whoever exports it: counters, and looks at the table.

Read from any thread of the worker's main process; the table's lock is taken for one pass over it.
A forked child inherits all of it and must export none of it: it would count everything twice.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_lease.core.lease import State
from celery_lease.core.policy import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_lease.worker.held import Held
    from celery_lease.worker.leases import Leases
    from celery_lease.worker.reaper import Counters
    from celery_lease.worker.tally import Tally
    from celery_lease.worker.watchdog import Watchdog


@dataclass(frozen=True, slots=True, eq=False)
class Vitals:
    """One worker's."""

    worker: str  #: its node name
    leases: Leases
    reaped: Counters
    watchdog: Watchdog
    pid: int = field(default_factory=os.getpid)

    @property
    def tally(self) -> Tally:
        """What is counted of its leases."""
        return self.leases.tally

    def look(self) -> Look:
        """Look at all leases that are held now."""
        with self.leases.lock:
            return _look(list(self.leases.held()), self.leases.clock.now())

    def keeper_lag(self) -> float:
        """Return by how many seconds the keeper is late: with its last pass, or with the next."""
        tally = self.tally
        return max(tally.keeper_lag, self.leases.clock.now() - tally.keeper_due)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the table of leases shows."""

    held: Mapping[tuple[State, str, str], int]  #: how many, by state, task and queue
    #: Seconds since the task beat, of the running one that has been silent longest by the keeper's
    #: last look; a quiet period is not silence, and a daemon task never beats.
    silence: float
    remaining: float | None  #: seconds until the first lease of a running task expires; None: none


def _look(helds: list[Held], now: float) -> Look:
    running = [held for held in helds if held.lease.state is State.RUNNING]
    beating = [held for held in running if held.lease.policy.mode is not Mode.DAEMON]
    return Look(
        Counter((held.lease.state, held.lease.name, held.lease.claim.queue) for held in helds),
        max([0.0, *(now - max(held.beat, held.quiet) for held in beating if held.beat)]),
        min((held.lease.deadline - now for held in running), default=None),
    )


#: The workers of this process that run; one, but for embedded ones. The main thread writes.
_running: list[Vitals] = []


def begin(vitals: Vitals) -> None:
    """Let exporters see a worker that started."""
    _running.append(vitals)


def end(vitals: Vitals) -> None:
    """Hide it from them again."""
    if vitals in _running:
        _running.remove(vitals)


def running() -> list[Vitals]:
    """Return the workers whose main process this is, in the order of their start."""
    return [vitals for vitals in _running if vitals.pid == os.getpid()]
