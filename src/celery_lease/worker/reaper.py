"""The reaper: returns expired leases, of any worker, and overdue plain messages to their queues."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_lease.core import fields
from celery_lease.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_lease.core.delivery import Reaped
    from celery_lease.core.driver import Driver

logger = logging.getLogger(__name__)

#: Messages returned in one sweep; the driver splits it into short calls, so that others wait for
#: the broker only briefly. The returned ones keep the order in which they were sent, so a large
#: number is better than a small one.
BATCH = 50_000
#: Sweeps in one run; the rest is left for the next run, or for another worker's reaper.
BATCHES = 2

#: Names of the counters: returned messages; the sum of seconds between their expiry and their
#: return; runs that the broker answered.
RECOVERED = "reaper.recovered.count"
STALE = "reaper.stale.duration"
RUNS = "reaper.runs.total"


@dataclass(slots=True)
class ReaperStats:
    """Counters of this worker's reaper. Written by its thread, read by any; they only grow."""

    recovered: int = 0
    stale: float = 0.0
    runs: int = 0
    parked: Mapping[str, int] = field(default_factory=dict)  #: waiting for keys, by queue

    def read(self) -> Mapping[str, float]:
        return {RECOVERED: self.recovered, STALE: self.stale, RUNS: self.runs}

    def add(self, reaped: Sequence[Reaped]) -> None:
        """Count the messages that came back after their holder's expiry."""
        late = [each.late for each in reaped if not (each.error or each.rested or each.unclaimed)]
        self.recovered += len(late)
        self.stale += sum(late)


class Reaper:
    """Sweeps the broker for expired leases. Any number of reapers may run at once."""

    def __init__(self, driver: Driver) -> None:
        self.stats = ReaperStats()
        self._driver = driver

    def run_once(self) -> list[Reaped]:
        """Sweep once; return the messages that went back to their queues, and those that failed to.

        Raises:
            OSError: The broker did not answer.
        """
        reaped: list[Reaped] = []
        for _ in range(BATCHES):
            batch = self._driver.reap(limit=BATCH)
            self.stats.add(batch)  # at once: the next call may fail, and these are back
            _log(batch)
            reaped += batch
            if len(batch) < BATCH:
                break
        if self._driver.capabilities.keys:
            self.stats.parked = self._driver.parked()
        self.stats.runs += 1
        return reaped


def _log(batch: Sequence[Reaped]) -> None:
    plain = sum(not each.leased and not each.error for each in batch)
    if plain:
        count = counted(plain, "message")
        logger.warning("%s without a lease, overdue: returned to queue", count)
    for each in batch:
        task, task_id = _task(each)
        token, worker = each.about.get("token"), each.about.get("worker")
        extra = fields.of_lease(task_id, task, each.tag, token, worker)
        if each.error:
            text = "message %s not returned to queue %s, next try in a minute: %s"
            logger.error(text, each.tag, each.queue or "?", each.error, extra=extra)
        elif each.rested:
            logger.info(
                "task %s[%s] returned to its queue after its backoff", *_task(each), extra=extra
            )
        elif each.unclaimed:
            logger.warning(
                "message of queue %s was sent to a worker that did not take it: returned",
                each.queue,
                extra=extra,
            )
        elif each.leased:
            logger.warning(
                "lease of task %s[%s] held by %s expired %.1f s ago: message returned to queue%s",
                *_task(each),
                each.about.get("worker"),
                each.late,
                f"; {cause}" if (cause := each.about.get("cause")) else "",
                extra=extra,
            )


def _task(each: Reaped) -> tuple[object, object]:
    return each.about.get("task"), each.about.get("id")
