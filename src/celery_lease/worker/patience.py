"""How long the keeper waits before it asks a broker again that did not answer.

Twice as long after each silence, and by chance a bit less, so that the workers of a broker that
comes back do not all ask it in the same moment. Never for longer than the leases can spare: a
broker that was away for less than a lease must be asked while there is still something to save.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Bounds of the wait in seconds; the first is what no lease's need makes it shorter than.
SHORTEST, FIRST, LONGEST = 0.1, 0.25, 5.0
#: What of the shortest lease, and of the time that the most urgent one has left, may be waited.
LEASE_SHARE, LEFT_SHARE = 1 / 8, 1 / 2
#: What of a wait chance may take off.
JITTER = 0.5


class Patience:
    """The waits of one asker. For one thread."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        """*chance* returns a number of 0 to 1."""
        self._chance = chance
        self._silences = 0
        self._until = -math.inf

    def left(self, now: float) -> float:
        """Return the seconds until the broker may be asked; 0.0: now."""
        return max(self._until - now, 0.0)

    def answered(self) -> None:
        """Ask without waiting from now on."""
        self._silences, self._until = 0, -math.inf

    def unanswered(self, now: float, *, lease: float, left: float) -> None:
        """Wait before the next question.

        Args:
            now: When the last one came to nothing.
            lease: Length of the shortest lease that this worker had, in seconds.
            left: Seconds that the most urgent one has left.
        """
        wait = min(FIRST * 2.0 ** min(self._silences, 16), LONGEST, lease * LEASE_SHARE)
        wait = max(min(wait * (1.0 - JITTER * self._chance()), left * LEFT_SHARE), SHORTEST)
        self._silences += 1
        self._until = now + wait
