"""Print the nanoseconds of a context's beat and of weakincentives' attached heartbeat's.

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

from celery_lease.current import private_context

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


heartbeat: Any = Heartbeat()
with LeaseExtender(config=LeaseExtenderConfig(interval=60)).attach(Message(), heartbeat):
    print(*nanoseconds(private_context().beat, heartbeat.beat))  # noqa: T201
