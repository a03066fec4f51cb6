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

from kombu import Connection

from celery_lease import board as beatboard, brokers
from celery_lease.board import Board
from celery_lease.brokers.redis.delivery import Delivery
from celery_lease.core.clock import SystemClock
from celery_lease.core.delivery import Answer, Claim, Terms
from celery_lease.core.lease import Lease
from celery_lease.core.policy import LeasePolicy
from celery_lease.worker.entries import LeaseEntry
from celery_lease.worker.keeper import Keeper
from celery_lease.worker.registry import LeaseRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection as Pipe

    from celery_lease.core.delivery import Renewal

#: Ten times as often as by default: what takes a minute in a worker is seen in six seconds.
POLICY = LeasePolicy(extension=300.0, interval=6.0)
#: Bytes of one message, as a task of a few arguments has.
PAYLOAD = "x" * 600
AT_ONCE = 500


@dataclass(slots=True)
class Notes:
    """What one keeper process measured."""

    calls: int = 0
    renewals: int = 0
    failed: int = 0  #: not answered
    lost: int = 0  #: leases that are not held at the end
    cpu: float = 0.0  #: seconds that the passes took of the processor
    wall: float = 0.0
    lags: list[float] = field(default_factory=list)  #: seconds after an extension was due
    waits: list[float] = field(default_factory=list)  #: seconds for an answer


class Watched:
    """A driver that notes what the keeper asks of it."""

    def __init__(self, driver: Any, interval: float) -> None:
        self._driver = driver
        self._interval = interval
        self._last: dict[str, float] = {}
        self.notes = Notes()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def extend(self, renewals: Sequence[Renewal], *, timeout: float) -> list[Answer]:
        """Extend, and take notes."""
        asked_at = time.monotonic()
        answers: list[Answer] = self._driver.extend(renewals, timeout=timeout)
        notes, now = self.notes, time.monotonic()
        notes.calls += 1
        notes.renewals += len(renewals)
        notes.failed += len(answers) - answers.count(Answer.HELD)
        notes.waits.append(now - asked_at)
        for each in renewals:
            if each.tag in self._last:
                notes.lags.append(now - self._last[each.tag] - self._interval)
            self._last[each.tag] = asked_at
        return answers


@dataclass(frozen=True, slots=True)
class Start:
    """How the processes of a fleet begin together: two barriers."""

    ready: Any  #: all leases are claimed
    go: Any  #: all extensions have found their schedule


def keep(url: str, count: int, seconds: float, start: Start, pipe: Pipe) -> None:
    """Hold *count* leases for some seconds, then send the notes; the body of one process."""
    logging.disable(logging.CRITICAL)  # what went wrong is in the notes
    clock = SystemClock()
    with Connection(url) as connection:
        driver = Watched(brokers.driver(connection.default_channel), POLICY.interval)
        leases = LeaseRegistry(driver, Board.create(), clock, "growth", lambda *_: POLICY)
        for held in _claimed(driver, leases, count):
            leases._entries[held.lease.claim.tag] = held
        keeper = Keeper(leases)
        start.ready.wait()
        _turn(keeper, leases, threading.Event(), until=time.monotonic() + POLICY.interval)
        start.go.wait()
        driver.notes = Notes()
        cpu = _turn(keeper, leases, threading.Event(), until=time.monotonic() + seconds)
        driver.notes.cpu, driver.notes.wall = cpu, seconds
        driver.notes.lost = sum(not held.lease.is_held for held in leases.entries())
        pipe.send(driver.notes)


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


def _claimed(driver: Any, leases: LeaseRegistry, count: int) -> Iterator[LeaseEntry]:
    """Claim as a channel does, with the calls in pipelines."""
    for start in range(0, count, AT_ONCE):
        deliveries = [_delivery() for _ in range(min(AT_ONCE, count - start))]
        asked_at, tokens = leases.clock.now(), _claim(driver, deliveries)
        for delivery, token in zip(deliveries, tokens, strict=True):
            yield _held(leases, delivery, int(token), asked_at)


def _delivery() -> Delivery:
    tag = f"{random.getrandbits(128):032x}#{random.getrandbits(48):012x}"
    payload = f'{{"lease": "000001:000001", "body": "{PAYLOAD}"}}'
    return Delivery(tag, "celery", payload, ', "celery", "celery"]', "celery", 1, 0)


def _claim(driver: Any, deliveries: Sequence[Delivery]) -> list[Any]:
    keys = [*driver.keys.claims, driver.keys.token, driver.keys.refusals]
    terms = Terms(seconds=POLICY.extension, about={"task": "growth.work", "worker": "growth"})

    def command(client: Any) -> list[Any]:
        with client.pipeline(transaction=False) as pipe:
            for each in deliveries:
                text = f"[{each.payload}{each.suffix}"
                args = [each.tag, text, terms.seconds, each.record(terms), each.arrival, ""]
                driver.server._scripts["claim"](keys=keys, args=args, client=pipe)
            return [token for token, *_ in pipe.execute()]

    return list(driver.server.call(command))


def _held(leases: LeaseRegistry, delivery: Delivery, token: int, asked_at: float) -> LeaseEntry:
    claim = Claim(
        tag=delivery.tag,
        token=token,
        queue=delivery.queue,
        deliveries=1,
        losses=0,
        asked_at=asked_at,
        seconds=POLICY.extension,
    )
    lease = Lease(claim, POLICY, task_id=delivery.tag, name="growth.work")
    lease.start(leases.clock.now())
    # Tasks do not begin all at once: neither do their extensions come due all at once.
    lease.extended_at = asked_at - random.uniform(0.0, POLICY.interval)
    slot = leases.board.lend()
    leases.board.allow(slot, lease.deadline)
    return LeaseEntry(lease, slot=slot)


class Fleet:
    """Some keeper processes on one database."""

    def __init__(self, url: str, workers: int, leases: int, seconds: float) -> None:
        context = multiprocessing.get_context("fork")
        self._start = Start(context.Barrier(workers + 1), context.Barrier(workers + 1))
        self._pipes, self._processes = [], []
        for _ in range(workers):
            mine, its = context.Pipe(duplex=False)
            arguments = (url, leases, seconds, self._start, its)
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
        """Wait for the end and return what was measured."""
        found = [pipe.recv() for pipe in self._pipes]
        for process in self._processes:
            process.join(30)
        return found
