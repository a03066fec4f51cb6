"""The deliveries of the last hour and their holders, from each look; bounded.

A look has the leases that are held, not their ends: the end of a lease between two looks is known
only from task events, if they are enabled (``--events``).

Threads: the watch's thread writes by :meth:`History.take` and the events' thread by
:meth:`History.hear`, each under the lock; viewers read copies under it.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from celery_lease.cli.timeline import HELD, LOST, Bar, Timeline
from celery_lease.view.row import ORPHANED, RESTING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from celery_lease.view import LeaseRow, View

#: Seconds that are kept; the most deliveries, extensions of each, and marks.
KEPT, MOST, EXTENSIONS, MARKS = 3600.0, 2000, 40, 200
#: The least seconds by which an extension moves a deadline; the drift of a clock is less.
MOVED = 0.5
#: The end of a bar whose lease was gone at the next look.
OVER = "over"


@dataclass(frozen=True, slots=True)
class Mark:
    """A worker that came online or went offline. Times are seconds since 1970."""

    at: float
    worker: str
    came: bool


@dataclass
class History:
    """Bars of the last hour."""

    timeline: Timeline = field(default_factory=Timeline)
    since: float = 0.0  #: the time of the first look, in seconds since 1970
    left_out: int = 0  #: deliveries beyond :data:`MOST`
    lock: threading.Lock = field(default_factory=threading.Lock)
    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=MARKS))
    _extended: dict[str, deque[float]] = field(default_factory=dict)
    _deadlines: dict[str, float] = field(default_factory=dict)
    _workers: frozenset[str] | None = None

    def take(self, view: View, workers: Iterable[str], wall: float) -> None:
        """Store a look of *wall* seconds since 1970; *workers*: the identities that replied."""
        with self.lock:
            self._take(view.rows, wall)
            self._mark(frozenset(workers), wall)

    def hear(self, event: Mapping[str, Any]) -> None:
        """Store a task event of a worker."""
        with self.lock:
            bars = self.timeline.bars
            if len(bars) < MOST or event.get("lease") in bars:
                self.timeline.add(event)

    def bars(self, task_id: str | None = None) -> list[Bar]:
        """Return the bars of one task, or all, in the order of their times."""
        with self.lock:
            bars = self.timeline.bars.values()
            found = [replace(bar) for bar in bars if task_id in (None, bar.task_id)]
        return sorted(found, key=attrgetter("begin"))

    def extensions(self, tag: str) -> Sequence[float]:
        """Return the times of a lease's extensions, as far as looks have shown them."""
        with self.lock:
            return tuple(self._extended.get(tag, ()))

    def _take(self, rows: Iterable[LeaseRow], wall: float) -> None:
        self.since = self.since or wall
        self.timeline.until = wall
        bars = self.timeline.bars
        held = {row.tag: row for row in rows if row.state != RESTING and row.tag}
        for tag, bar in bars.items():
            if bar.ended is None and tag not in held:
                bar.end, bar.ended = (LOST if bar.why else OVER), wall
        self._forget(wall, sum(tag not in bars for tag in held))
        self.left_out = 0
        for tag, row in held.items():
            if tag in bars or len(bars) < MOST:
                _seen(bars.setdefault(tag, Bar.of(row, row.held_since)), row, wall)
                self._extend(row, wall)
            else:
                self.left_out += 1

    def _extend(self, row: LeaseRow, wall: float) -> None:
        deadline = wall + row.remaining
        if deadline > self._deadlines.get(row.tag, deadline) + MOVED:
            self._extended.setdefault(row.tag, deque(maxlen=EXTENSIONS)).append(wall)
        self._deadlines[row.tag] = deadline

    def _mark(self, workers: frozenset[str], wall: float) -> None:
        if self._workers is not None:
            changes = [(each, True) for each in workers - self._workers]
            changes += [(each, False) for each in self._workers - workers]
            self.marks.extend(Mark(wall, each, came) for each, came in sorted(changes))
        self._workers = workers

    def _forget(self, wall: float, new: int) -> None:
        """Remove bars that ended long ago, and further ended ones for *new* bars, oldest first."""
        bars = self.timeline.bars
        over = sorted((bar.ended, tag) for tag, bar in bars.items() if bar.ended is not None)
        old = sum(ended < wall - KEPT for ended, _ in over)
        for _, tag in over[: max(old, len(bars) + new - MOST, 0)]:
            del bars[tag]
            self._extended.pop(tag, None)
            self._deadlines.pop(tag, None)


def _seen(bar: Bar, row: LeaseRow, wall: float) -> None:
    """Update a bar with a held lease."""
    bar.started = row.started_at or bar.started
    if row.state == ORPHANED:
        bar.why = bar.why or "no reply"
        bar.started = bar.started or row.held_since  # the best guess
    elif row.state == LOST:
        bar.end, bar.ended, bar.why = LOST, bar.ended or wall, row.lost or ""
    elif bar.end in {HELD, OVER}:
        bar.end, bar.ended, bar.why = HELD, None, ""
