"""Returns expired leases, of any worker, to their queues, and overdue plain messages to theirs."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_lease.core import fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_lease.core.delivery import Driver, Reaped

logger = logging.getLogger(__name__)

#: Messages returned in one call, so that no call keeps the broker from others for long.
BATCH = 50
#: Calls in one sweep; what is left waits for the next, or for another worker's reaper.
BATCHES = 40

#: Names of what is counted: messages returned; seconds, in all, that these lay between their
#: expiry and their return; sweeps that the broker answered.
RECOVERED = "reaper.recovered.count"
STALE = "reaper.stale.duration"
RUNS = "reaper.runs.total"


@dataclass(slots=True)
class Counters:
    """What this worker's reaper did. Written by its thread, read by any; all only grow."""

    recovered: int = 0
    stale: float = 0.0
    runs: int = 0

    def read(self) -> Mapping[str, float]:
        """Return the values by their names."""
        return {RECOVERED: self.recovered, STALE: self.stale, RUNS: self.runs}

    def add(self, reaped: Sequence[Reaped]) -> None:
        """Count what came back from a holder that was too late."""
        late = [each.late for each in reaped if not (each.error or each.rested or each.unclaimed)]
        self.recovered += len(late)
        self.stale += sum(late)


class Reaper:
    """Sweeps the broker for expired leases. Any number may do so at once."""

    def __init__(self, driver: Driver) -> None:
        self.counters = Counters()
        self._driver = driver

    def run_once(self) -> list[Reaped]:
        """Sweep once; return what went back to its queue, and what should have.

        Raises:
            OSError: The broker did not answer.
        """
        reaped: list[Reaped] = []
        for _ in range(BATCHES):
            batch = self._driver.reap(limit=BATCH)
            self.counters.add(batch)  # the next call may fail, and these are back in their queues
            _tell(batch)
            reaped += batch
            if len(batch) < BATCH:
                break
        self.counters.runs += 1
        return reaped


def _tell(batch: Sequence[Reaped]) -> None:
    plain = sum(not each.leased and not each.error for each in batch)
    if plain:
        logger.warning("%d messages without a lease were overdue: returned to queue", plain)
    for each in batch:
        extra = fields.of_ticket({**each.about, "tag": each.tag})
        if each.error:
            text = "message %s not returned to queue %s, next try in a minute: %s"
            logger.error(text, each.tag, each.queue or "?", each.error, extra=extra)
        elif each.rested:
            logger.info("task %s[%s] may be tried again", *_task(each), extra=extra)
        elif each.unclaimed:
            logger.warning(
                "message of queue %s was sent to a worker that did not take it: returned",
                each.queue,
                extra=extra,
            )
        elif each.leased:
            logger.warning(
                "lease of task %s[%s] held by %s expired %.1f s ago: message returned to queue",
                *_task(each),
                each.about.get("worker"),
                each.late,
                extra=extra,
            )


def _task(each: Reaped) -> tuple[object, object]:
    return each.about.get("task"), each.about.get("id")
