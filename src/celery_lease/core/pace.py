"""The pace of a task: the gaps between its beats and the length of its runs, in bounded memory.

Gaps are counted in classes, each wider than the one before by the same ratio.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Upper bounds of the classes, in seconds: from 0.1 to a day, four to each doubling.
BOUNDS = tuple(0.1 * 2 ** (number / 4) for number in range(80))


@dataclass(slots=True)
class Pace:
    """The pace of one task. Durations are in seconds."""

    gaps: Counter[int] = field(default_factory=Counter)  #: number of gaps, by class
    longest_gap: float = 0.0
    runs: int = 0  #: that ended without a loss
    longest_run: float = 0.0
    silent: int = 0  #: runs in which no beat was seen
    late: int = 0  #: runs with a gap that heartbeat mode would not have allowed
    lost: int = 0  #: runs that ended by a loss
    mode: str = ""  #: of the last run
    extension: float = 0.0  #: of the last run

    def add_gap(self, seconds: float) -> None:
        """Count the time between two beats, or between a beat and the end of the body."""
        self.gaps[bisect_left(BOUNDS, seconds)] += 1
        self.longest_gap = max(self.longest_gap, seconds)

    def quantile(self, share: float) -> float:
        """Return a bound that a *share* of the gaps does not exceed; at most 19 % too large."""
        left = share * self.gaps.total()
        for number, count in sorted(self.gaps.items()):
            left -= count
            if left <= 0:
                return min([self.longest_gap, *BOUNDS[number : number + 1]])
        return self.longest_gap

    def add(self, other: Pace) -> None:
        """Add the numbers of another pace of the task."""
        self.gaps += other.gaps
        self.longest_gap = max(self.longest_gap, other.longest_gap)
        self.longest_run = max(self.longest_run, other.longest_run)
        for name in ("runs", "silent", "late", "lost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.mode, self.extension = other.mode or self.mode, other.extension or self.extension

    def to_dict(self) -> dict[str, Any]:
        data = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**data, "gaps": {str(number): count for number, count in self.gaps.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Parse a dict of :meth:`to_dict`, of this version or another."""
        known = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        gaps = {int(number): int(count) for number, count in data.get("gaps", {}).items()}
        return cls(**{**known, "gaps": Counter(gaps)})
