"""The rates of tasks' progress: a loop's own over all its runs, others from successive looks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from celery_lease.view import LeaseRow

#: The least seconds for a rate, and the seconds of each half of its period.
LEAST, HALF = 2.0, 30.0

_Point = tuple[float, float]  # time, and the amount that was done


@dataclass
class Rates:
    """The progress of each lease over the last minute. For the watch's thread."""

    _points: dict[str, tuple[_Point, _Point]] = field(default_factory=dict)

    def take(self, rows: Iterable[LeaseRow], now: float) -> Mapping[str, float]:
        """Store a look; return the progress per second, by the delivery's tag."""
        points, rates = {}, {}
        for row in rows:
            done = row.progress.done
            if done is None or row.beat_age is None:  # none if its holder does not answer
                continue
            old, middle = self._points.get(row.tag, ((now, done), (now, done)))
            if now - middle[0] >= HALF:
                old, middle = middle, (now, done)
            points[row.tag] = old, middle
            if row.progress.rate is not None:
                rates[row.tag] = row.progress.rate
            elif now - old[0] >= LEAST:
                rates[row.tag] = (done - old[1]) / (now - old[0])
        self._points = points
        return rates


def seconds_left(row: LeaseRow, rate: float | None) -> float | None:
    """Return the seconds until a task is done at this rate; None: unknown."""
    done, total = row.progress.done, row.progress.total
    if not rate or rate <= 0 or done is None or not total or done >= total:
        return None
    return (total - done) / rate
