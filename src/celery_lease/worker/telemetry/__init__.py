"""A worker's counters, and the state of its leases, for exporters.

Read from any thread of the worker's main process; the registry's lock is taken for one pass over
it. A forked child inherits all of it and must not export it: everything would be counted twice.
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

    from celery_lease.worker.entries import LeaseEntry
    from celery_lease.worker.reaper import ReaperStats
    from celery_lease.worker.registry import LeaseRegistry
    from celery_lease.worker.telemetry.stats import LeaseStats
    from celery_lease.worker.watchdog import Watchdog


@dataclass(frozen=True, slots=True, eq=False)
class Telemetry:
    """The counters and leases of one worker."""

    worker: str  #: the worker's node name
    leases: LeaseRegistry
    reaped: ReaperStats
    watchdog: Watchdog
    pid: int = field(default_factory=os.getpid)

    @property
    def stats(self) -> LeaseStats:
        return self.leases.stats

    def look(self) -> Look:
        """Return the state of all leases that are held now."""
        with self.leases.lock:
            return _look(list(self.leases.entries()), self.leases.clock.now())

    def keeper_lag(self) -> float:
        """Return by how many seconds the keeper is late: with its last pass, or with the next."""
        stats = self.stats
        return max(stats.keeper_lag, self.leases.clock.now() - stats.keeper_due)


@dataclass(frozen=True, slots=True)
class Look:
    """The state of all leases at one moment."""

    held: Mapping[tuple[State, str, str], int]  #: how many, by state, task and queue
    #: Seconds since the last beat of the running task that was silent longest at the keeper's last
    #: look; a quiet period is no silence, and daemon tasks are left out.
    silence: float
    remaining: float | None  #: seconds until the first lease of a running task expires; None: none
    keys: Mapping[tuple[str, str], int] = field(default_factory=dict)  #: held, by task and queue


def _look(entries: list[LeaseEntry], now: float) -> Look:
    running = [entry for entry in entries if entry.lease.state is State.RUNNING]
    beating = [entry for entry in running if entry.lease.policy.mode is not Mode.DAEMON]
    return Look(
        Counter(
            (entry.lease.state, entry.lease.name, entry.lease.claim.queue) for entry in entries
        ),
        max([0.0, *(now - max(entry.beat, entry.quiet) for entry in beating if entry.beat)]),
        min((entry.lease.deadline - now for entry in running), default=None),
        Counter(
            (entry.lease.name, entry.lease.claim.queue) for entry in entries if entry.holds_key
        ),
    )


#: The workers that run in this process; one, except for embedded ones. The main thread writes.
_running: list[Telemetry] = []


def begin(telemetry: Telemetry) -> None:
    """Show a worker that started to exporters."""
    _running.append(telemetry)


def end(telemetry: Telemetry) -> None:
    """Hide a worker from exporters."""
    if telemetry in _running:
        _running.remove(telemetry)


def running() -> list[Telemetry]:
    """Return the workers whose main process is this one, in the order of their start."""
    return [telemetry for telemetry in _running if telemetry.pid == os.getpid()]
