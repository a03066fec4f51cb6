"""Returns expired leases, of any worker, to their queues."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_lease.core.delivery import Driver, Reaped

logger = logging.getLogger(__name__)

#: Messages returned in one call, so that no call keeps the broker from others for long.
BATCH = 50
#: Calls in one sweep; what is left waits for the next, or for another worker's reaper.
BATCHES = 40


class Reaper:
    """Sweeps the broker for expired leases. Any number may do so at once."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def run_once(self) -> list[Reaped]:
        """Sweep once; return what went back to its queue.

        Raises:
            OSError: The broker did not answer.
        """
        reaped: list[Reaped] = []
        for _ in range(BATCHES):
            batch = self._driver.reap(limit=BATCH)
            _log(batch)  # the next call may fail, and these are back in their queues
            reaped += batch
            if len(batch) < BATCH:
                break
        return reaped


def _log(reaped: list[Reaped]) -> None:
    for each in reaped:
        logger.warning(
            "lease of task %s[%s] held by %s expired %.1f s ago: message returned to queue",
            each.about.get("task"),
            each.about.get("id"),
            each.about.get("worker"),
            each.late,
            extra={"task_id": each.about.get("id"), "lease": each.tag},
        )
