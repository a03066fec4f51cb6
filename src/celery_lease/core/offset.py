"""The difference between two clocks, from one question and its answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offset:
    """Another clock minus this host's, in seconds: somewhere from *low* to *high*.

    The other clock was read at some moment between the question and its answer, so the round trip
    is the uncertainty.
    """

    low: float
    high: float

    @classmethod
    def of(cls, reported: float, asked: float, answered: float) -> Offset:
        """Return the offset of a clock that *reported* a time between two readings of this."""
        return cls(reported - answered, reported - asked)

    @property
    def least(self) -> float:
        """The least possible difference of the clocks, without a sign."""
        return max(0.0, self.low, -self.high)

    def to(self, other: Offset) -> Offset:
        """Return the offset of this clock from that of *other*."""
        return Offset(self.low - other.high, self.high - other.low)

    def __str__(self) -> str:
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return f"{middle:+.3f} s (± {half:.3f} s)"
