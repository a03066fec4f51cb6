"""The only module that reads the time from the operating system.

There are two kinds of time, never mixed: :meth:`Clock.now` is seconds on a monotonic clock that all
processes of one host share, and that also counts while the host is suspended; beats and deadlines
use it. :meth:`Clock.wall` is an aware date for display and decides nothing.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

# CLOCK_BOOTTIME counts suspend, CLOCK_MONOTONIC on Linux does not: a lease goes on expiring at the
# broker while the host sleeps. Elsewhere (macOS, BSD) the monotonic clock is the best available.
BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 1))

#: Seconds on the host's clock, see :meth:`SystemClock.now`; one C call, for the beat.
host_seconds: Callable[[], float] = (
    time.monotonic if sys.platform == "win32" else partial(time.clock_gettime, BOOT_CLOCK)
)

#: Processor seconds that the calling thread has used, for measurements.
thread_seconds: Callable[[], float] = time.thread_time


class Clock(Protocol):
    """A source of time that tests can replace."""

    def now(self) -> float:
        """Return seconds on the host's shared, monotonic clock."""
        ...

    def wall(self) -> datetime:
        """Return the date and time, for display only."""
        ...


class SystemClock:
    """The host's clock."""

    #: Returns seconds since boot, suspend included where the platform counts it.
    now = staticmethod(host_seconds)

    def wall(self) -> datetime:
        """Return the current date and time in UTC."""
        return datetime.now(UTC)
