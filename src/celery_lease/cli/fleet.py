"""What is known of a fleet of workers that come and go, from one question to the next.

A worker that does not reply is not gone at once: what it said last is shown for a while, with its
times going on, and so is the fact that it is silent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_lease.cli.rows import SORTS, listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_lease.cli.rows import Row

#: Seconds after which a silent worker is forgotten.
FORGET = 15.0


@dataclass(slots=True)
class Fleet:
    """Workers by their names, with what they said last and when; times are the asker's clock's."""

    said: dict[str, tuple[float, list[Any]]] = field(default_factory=dict)
    asked_at: float | None = None  #: when the last question was over; None: none was
    trouble: str = ""  #: why the last question failed

    def heard(self, replies: Mapping[str, Any], at: float) -> None:
        """Take in the replies to one question."""
        self.trouble = ""
        self.asked_at = at
        self.said |= {
            name: (at, reply) for name, reply in replies.items() if isinstance(reply, list)
        }
        self.said = {
            name: (then, rows) for name, (then, rows) in self.said.items() if at - then < FORGET
        }

    def failed(self, why: str) -> None:
        """Take note that nobody could be asked."""
        self.trouble = why

    def silent(self) -> list[str]:
        """Return the workers that replied before, and not to the last question."""
        return sorted(name for name, (then, _) in self.said.items() if then != self.asked_at)

    def rows(self, sort: str, now: float) -> list[Row]:
        """Return all leases, sorted, as they are *now* if nothing happened since."""
        found: list[Row] = []
        for name, (then, rows) in self.said.items():
            found += [_aged(row, now - then) for row in listed({name: rows})]
        return sorted(found, key=SORTS[sort])

    def headline(self, rows: list[Row]) -> str:
        """Return how many there are of everything, in one line."""
        states = Counter(row["state"] for row in rows)
        told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        line = f"{len(self.said)} workers, {len(rows)} leases" + (f": {told}" if told else "")
        if self.silent():
            line += f"; no reply from {', '.join(self.silent())}"
        return f"{line}; {self.trouble}" if self.trouble else line


def _aged(row: Row, seconds: float) -> Row:
    """Return a lease as it is some seconds after it was described."""
    beat = row["beat_age"]
    return {
        **row,
        "beat_age": None if beat is None else beat + seconds,
        "remaining": max(0.0, row["remaining"] - seconds),
    }
