"""Print the nanoseconds of a context's beat, of weakincentives' attached heartbeat's, and of ours.

A program of its own, for weakincentives needs a later Python than this project's tests.
"""

from __future__ import annotations

from timeit import timeit
from typing import Any

from weakincentives.runtime.lease_extender import (  # type: ignore[import-not-found]
    LeaseExtender,
    LeaseExtenderConfig,
)
from weakincentives.runtime.watchdog import Heartbeat  # type: ignore[import-not-found]

import celery_lease
from celery_lease.task.current import private_context

BATCHES, SIZE = 1000, 2000


class Message:
    """A message whose extension takes no time."""

    id = "message"

    def extend_visibility(self, seconds: int) -> None:
        """Extend nothing."""


def nanoseconds(*beats: Any) -> list[float]:
    """Return what the quickest batch of each took for a call; the batches take turns."""
    batches = [[timeit(beat, number=SIZE) for beat in beats] for _ in range(BATCHES)]
    return [min(times) / SIZE * 1e9 for times in zip(*batches, strict=True)]


theirs: Any = Heartbeat()
ours = celery_lease.Heartbeat()
with (
    LeaseExtender(config=LeaseExtenderConfig(interval=60)).attach(Message(), theirs),
    celery_lease.LeaseExtender().attach(Message(), ours),
):
    print(*nanoseconds(private_context().beat, theirs.beat, ours.beat))  # noqa: T201
