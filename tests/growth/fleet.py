"""A fleet of keepers: processes that do a worker's lease traffic, and nothing else of a worker.

Each has the worker's own table of leases, keeper, board and driver; what it lacks are the pool and
the tasks. Beats are written into the board for all leases before every pass, so every lease is
always due for its next extension: the most traffic that there can be.
"""

from __future__ import annotations

import logging
import multiprocessing
import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_lease import board as beatboard
from celery_lease.board import Board
from celery_lease.core.clock import SystemClock
from celery_lease.core.delivery import Answer, Renewal
from celery_lease.core.lease import Lease
from celery_lease.core.policy import LeasePolicy
from celery_lease.worker.entries import LeaseEntry
from celery_lease.worker.keeper import Keeper
from celery_lease.worker.registry import LeaseRegistry
from growth import holding

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection as Pipe

    from celery_lease.core.delivery import Claim
    from harness.places import Place

#: As by default.
POLICY = LeasePolicy(extension=300.0, interval=60.0)
#: Extensions before all is measured, so that PostgreSQL's statement is prepared and planned.
WARM = 12
#: Seconds from then until it is measured.
SETTLES = 1.0


@dataclass(slots=True)
class Notes:
    """What one keeper process measured."""

    calls: int = 0
    renewals: int = 0
    failed: int = 0  #: not answered
    lost: int = 0  #: leases that are not held at the end
    cpu: float = 0.0  #: seconds that the passes took of the processor
    lags: list[float] = field(default_factory=list)  #: seconds after an extension was due


class Watched:
    """A driver that notes what the keeper asks of it."""

    def __init__(self, driver: Any, clock: SystemClock) -> None:
        self._driver = driver
        self._clock = clock
        self.due: dict[str, float] = {}  #: by delivery id
        self.notes = Notes()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def extend(self, renewals: Sequence[Renewal], *, timeout: float) -> list[Answer]:
        """Extend, and take notes."""
        asked_at = self._clock.now()
        answers: list[Answer] = self._driver.extend(renewals, timeout=timeout)
        notes, now = self.notes, self._clock.now()
        notes.calls += 1
        notes.renewals += len(renewals)
        notes.failed += len(answers) - answers.count(Answer.HELD)
        for each in renewals:
            notes.lags.append(now - self.due[each.tag])
            self.due[each.tag] = asked_at + POLICY.interval
        return answers


@dataclass(frozen=True, slots=True)
class Start:
    """How the processes of a fleet begin together: two barriers."""

    ready: Any  #: all leases are claimed
    go: Any  #: to count, and when all have counted


def keep(place: Place, count: int, seconds: float, start: Start, pipe: Pipe) -> None:
    """Hold *count* leases for some seconds, then send the notes; the body of one process."""
    logging.disable(logging.CRITICAL)  # what went wrong is in the notes
    try:
        pipe.send(_kept(place, count, seconds, start))
        start.go.wait()  # what the end of a connection costs does not count
    except BaseException:
        start.ready.abort()
        start.go.abort()
        raise


def _kept(place: Place, count: int, seconds: float, start: Start) -> Notes:
    clock = SystemClock()
    driver, claims = holding.claimed(place, count, POLICY.extension)
    watched = Watched(driver, clock)
    leases = LeaseRegistry(watched, Board.create(), clock, "growth", lambda *_: POLICY)  # type: ignore[arg-type]
    for claim in claims:
        leases._entries[claim.tag] = leases._lent[claim.tag] = _held(leases, claim)
    for _ in range(WARM):
        driver.extend([Renewal(claim.tag, POLICY.extension)], timeout=60.0)
    keeper = Keeper(leases)
    start.ready.wait()
    for entry in leases.entries():
        # Tasks do not begin all at once: neither do their extensions come due all at once.
        due = watched.due[entry.lease.claim.tag] = clock.now() + random.uniform(0, POLICY.interval)
        entry.lease.next_at = due
    _turn(keeper, leases, threading.Event(), until=time.monotonic() + SETTLES)
    start.go.wait()
    watched.notes = Notes()
    cpu = _turn(keeper, leases, threading.Event(), until=time.monotonic() + seconds)
    watched.notes.cpu = cpu
    watched.notes.lost = sum(not held.lease.is_held for held in leases.entries())
    return watched.notes


def _turn(keeper: Keeper, leases: LeaseRegistry, nobody: threading.Event, *, until: float) -> float:
    """Do what the worker's service does; return the processor time of the passes."""
    spent = 0.0
    while time.monotonic() < until:
        _beat(leases)
        began = time.process_time()
        wait = keeper.run_once().wait
        spent += time.process_time() - began
        nobody.wait(wait * random.uniform(0.8, 1.0))
    return spent


def _beat(leases: LeaseRegistry) -> None:
    now = leases.clock.now()
    for held in leases.entries():
        if held.slot is not None:
            leases.board.write_time(held.slot, beatboard.BEAT, now)


def _held(leases: LeaseRegistry, claim: Claim) -> LeaseEntry:
    lease = Lease(claim, POLICY, task_id=claim.tag, name="growth.work")
    lease.start(leases.clock.now())
    slot = leases.board.lend()
    leases.board.allow(slot, lease.deadline)
    return LeaseEntry(lease, slot=slot)


class Fleet:
    """Some keeper processes on one queue."""

    def __init__(self, place: Place, workers: int, leases: int, seconds: float) -> None:
        context = multiprocessing.get_context("fork")
        self._start = Start(context.Barrier(workers + 1), context.Barrier(workers + 1))
        self._pipes, self._processes = [], []
        for _ in range(workers):
            mine, its = context.Pipe(duplex=False)
            arguments = (place, leases, seconds, self._start, its)
            process = context.Process(target=keep, args=arguments, daemon=True)
            process.start()
            its.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def measure_from_here(self) -> None:
        """Return when all have claimed, are in step with their schedule, and begin to count."""
        self._start.ready.wait(300)
        self._start.go.wait(300)

    def notes(self) -> list[Notes]:
        """Return what was measured; the processes live on."""
        return [pipe.recv() for pipe in self._pipes]

    def end(self) -> None:
        """End the processes."""
        self._start.go.wait(300)
        for process in self._processes:
            process.join(30)
