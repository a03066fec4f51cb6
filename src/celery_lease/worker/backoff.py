"""The keeper's backoff when the broker does not answer.

The wait doubles after each silence, with jitter, so that the workers of a broker that comes back
do not all ask it at the same moment. It is never longer than the leases allow: a broker that was
away for less than a lease must be asked while leases can still be saved.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Bounds of the wait in seconds. ``SHORTEST`` holds even if a lease has less time.
SHORTEST, FIRST, LONGEST = 0.1, 0.25, 5.0
#: Shares of the shortest lease, and of the most urgent lease's remaining time, that may be waited.
LEASE_SHARE, LEFT_SHARE = 1 / 8, 1 / 2
#: Share of a wait that the jitter may take off.
JITTER = 0.5


class Backoff:
    """The backoff of one caller. For one thread."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        """*chance* returns a number from 0 to 1."""
        self._chance = chance
        self._silences = 0
        self._until = -math.inf

    def left(self, now: float) -> float:
        """Return the seconds until the broker may be asked again; 0.0: now."""
        return max(self._until - now, 0.0)

    def answered(self) -> None:
        self._silences, self._until = 0, -math.inf

    def unanswered(self, now: float, *, lease: float, left: float) -> None:
        """Start the next wait: the broker did not answer.

        Args:
            now: When the last call failed, in monotonic seconds.
            lease: The length of this worker's shortest lease so far, in seconds.
            left: The seconds that the most urgent lease has left.
        """
        wait = min(FIRST * 2.0 ** min(self._silences, 16), LONGEST, lease * LEASE_SHARE)
        wait = max(min(wait * (1.0 - JITTER * self._chance()), left * LEFT_SHARE), SHORTEST)
        self._silences += 1
        self._until = now + wait
