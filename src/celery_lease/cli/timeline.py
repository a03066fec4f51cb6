"""Builds a timeline from lease events: one bar for each holder.

A delivery has its own tag at the broker, so each bar is one delivery. Its end comes from its
worker, or, if that was killed, from the worker that recovered the message, or from the next grant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_lease.core.lease import State
from celery_lease.view.row import ORPHANED, RESTING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_lease.view import LeaseRow

#: The end of a bar whose lease was held when the recording ended.
HELD = "held"
#: The end of a bar whose worker was late, even if it lived.
LOST = "lost"
#: After these ends a task is not run again.
FINAL = frozenset({"completed", "dead-lettered"})
#: The state of a lease whose task has not begun; the name of an unknown holder.
RESERVED, UNKNOWN = str(State.RESERVED), "unknown"


@dataclass(slots=True)
class Bar:
    """One delivery of one task, in one worker. Times are seconds since 1970 by its clock."""

    task_id: str
    name: str
    lease: str
    worker: str  #: the node's name
    token: int | None = None
    granted: float | None = None  #: None: before the recording
    started: float | None = None
    ended: float | None = None
    end: str = HELD
    why: str = ""

    @classmethod
    def of(cls, row: LeaseRow, granted: float) -> Bar:
        """Return the bar of a lease that is held."""
        worker = row.hostname or UNKNOWN
        return cls(row.id, row.task, row.tag, worker, token=row.token, granted=granted)

    @property
    def times(self) -> list[float]:
        return [time for time in (self.granted, self.started, self.ended) if time is not None]

    @property
    def begin(self) -> float:
        return min(self.times, default=0.0)


@dataclass(slots=True)
class Timeline:
    """Bars, built from events in the order in which they arrive."""

    task_id: str | None = None  #: only of this task
    bars: dict[str, Bar] = field(default_factory=dict)  #: by the delivery's tag
    until: float | None = None  #: when the recording ended, seconds since 1970

    def begin_with(self, row: LeaseRow, at: float) -> None:
        """Add a lease that is held when the recording begins, *at* seconds since 1970."""
        if row.state == RESTING:
            return  # it has no holder
        bar = Bar.of(row, at)
        if row.started_at is not None or row.state != RESERVED:
            bar.started = at  # the start, or the best guess
        if row.state == ORPHANED:
            bar.why = "no reply"
        self.bars[row.tag] = bar

    def add(self, event: Mapping[str, Any]) -> None:
        """Add an event; events of other kinds are ignored."""
        note = _NOTES.get(event["type"])
        if note is not None and self.task_id in (None, event.get("uuid")):
            note(self._bar(event), event)

    @property
    def is_over(self) -> bool:
        """Whether the one task that is followed will not run again."""
        return self.task_id is not None and any(bar.end in FINAL for bar in self.bars.values())

    def tasks(self) -> list[list[Bar]]:
        """Return the bars of each task, tasks and bars in the order of their times."""
        found: dict[str, list[Bar]] = {}
        for bar in sorted(self.bars.values(), key=lambda bar: (bar.begin, bar.token or 0)):
            found.setdefault(bar.task_id, []).append(bar)
        for bars in found.values():
            _end_replaced(bars)
        return list(found.values())

    def span(self) -> tuple[float, float]:
        """Return the first and the last time; there must be at least one bar."""
        times = [time for bar in self.bars.values() for time in bar.times]
        if self.until is not None and any(bar.ended is None for bar in self.bars.values()):
            times.append(self.until)
        return min(times), max(times)

    def _bar(self, event: Mapping[str, Any]) -> Bar:
        lease = event["lease"]
        if lease not in self.bars:
            # A worker's identity is its node's name, its process id and a random part.
            worker = str(event.get("holder") or event.get("hostname")).rsplit(":", 2)[0]
            self.bars[lease] = Bar(
                event["uuid"], event["name"], lease, worker, token=event.get("token")
            )
        return self.bars[lease]


def _end_replaced(bars: list[Bar]) -> None:
    """End each open bar of a task that another worker was granted since."""
    for bar in bars:
        later = [
            other.granted
            for other in bars
            if other.granted is not None and (other.token or 0) > (bar.token or 0)
        ]
        if bar.end == HELD and later:
            bar.end, bar.ended, bar.why = LOST, min(later), "run again by then"


def _granted(bar: Bar, event: Mapping[str, Any]) -> None:
    bar.granted = event["timestamp"]


def _started(bar: Bar, event: Mapping[str, Any]) -> None:
    bar.started = event["timestamp"]


def _lost(bar: Bar, event: Mapping[str, Any]) -> None:
    bar.end, bar.ended, bar.why = LOST, event["timestamp"], event["reason"]


def _stalled(bar: Bar, event: Mapping[str, Any]) -> None:
    bar.why = f"silent for {event['silent']:g} s, {event['doing']}"


def _ended(bar: Bar, event: Mapping[str, Any]) -> None:
    if bar.end != LOST:  # a lost lease leaves its worker when its task ends, which is later
        bar.end, bar.ended = event["ending"], event["timestamp"]


def _recovered(bar: Bar, event: Mapping[str, Any]) -> None:
    if bar.end == HELD:
        bar.end, bar.ended = LOST, event["timestamp"] - event["late"]
    if bar.end == LOST:
        said = f"recovered by {event['hostname']} {event['late']:.1f} s later"
        bar.why = f"{bar.why}, {said}" if bar.why else said


_NOTES: Mapping[str, Callable[[Bar, Mapping[str, Any]], None]] = {
    "lease-granted": _granted,
    "lease-started": _started,
    "lease-lost": _lost,
    "lease-stalled": _stalled,
    "lease-ended": _ended,
    "lease-recovered": _recovered,
}
