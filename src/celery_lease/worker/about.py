"""What a worker tells of itself to who compares workers with each other."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from celery_lease.core.clock import SystemClock

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

#: Distributions whose versions should agree.
PACKAGES = ("celery-lease", "celery", "kombu")


@cache
def versions() -> dict[str, str]:
    """Return the versions that are installed here, by distribution."""
    return {name: version(name) for name in PACKAGES}


def about(consumer: Consumer) -> dict[str, Any]:
    """Return a worker's versions, clock, pool, and the tasks that were slow to beat.

    The clock is seconds since the epoch.
    """
    return {
        "versions": versions(),
        "clock": SystemClock().wall().timestamp(),
        "pid": os.getpid(),
        "pool": type(consumer.pool).__module__.rpartition(".")[2],
        "enabled": getattr(consumer, "leases", None) is not None,
        "silent": sorted(list(getattr(consumer, "lease_silent", ()))),  # noqa: C414  (a copy first: another thread adds to it)
    }
