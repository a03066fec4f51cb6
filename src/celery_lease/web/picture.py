"""The timeline of a page: workers as rows, deliveries as bars, in percent of its width."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_lease.cli.rows import span
from celery_lease.cli.timeline import HELD, Bar
from celery_lease.web.history import KEPT, History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


#: Minutes to choose from, and the most lanes of one worker.
SPANS, LANES = (5, 15, 60), 24
#: Number of marks on the axis.
TICKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One delivery; positions are percentages of the width."""

    bar: Bar
    at: float
    runs_at: float
    to: float
    extensions: Sequence[float] = ()

    @property
    def said(self) -> str:
        bar = self.bar
        start = bar.started or bar.begin
        length = "" if bar.ended is None else f" after {span(bar.ended - start)}"
        why = f" ({bar.why})" if bar.why else ""
        return f"{bar.name} [{bar.task_id}] on {bar.worker}: {bar.end}{length}{why}"

    @property
    def kind(self) -> str:
        """The style: its end, or "orphaned" if its holder does not answer."""
        if self.bar.end == HELD:
            return "orphaned" if self.bar.why else "held"
        return self.bar.end.replace(" ", "-")


@dataclass(slots=True)
class Row:
    """One worker."""

    worker: str
    lanes: list[list[Drawn]] = field(default_factory=list)
    more: int = 0  #: deliveries without room in a lane
    waiting: int = 0  #: leases whose tasks have not started
    marks: list[tuple[float, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The whole timeline."""

    rows: Sequence[Row]
    ticks: Sequence[tuple[float, str]]
    ends: Sequence[str]  #: the kinds of bars, for the legend


def task_picture(history: History, now: float, task_id: str) -> Picture:
    """Return the timeline of one task, over the shortest span that contains all of it."""
    first = min((bar.begin for bar in history.bars(task_id)), default=now)
    fitting = [minutes * 60 for minutes in SPANS if minutes * 60 >= now - first]
    return picture(history, now, fitting[0] if fitting else KEPT, task_id)


def picture(history: History, now: float, seconds: float, task_id: str | None = None) -> Picture:
    """Return the last *seconds* of a history; *now* is seconds since 1970."""
    first = now - min(seconds, KEPT)

    def place(at: float) -> float:
        return round(min(100.0, max(0.0, (at - first) * 100 / (now - first))), 2)

    rows: dict[str, Row] = {}
    for bar in history.bars(task_id):
        row = rows.setdefault(bar.worker, Row(bar.worker))
        if bar.ended is not None and bar.ended < first:
            continue
        if bar.started is None and bar.ended is None and not task_id:
            row.waiting += 1
        elif not _add(row, _drawn(bar, history, place)):
            row.more += 1
    for mark in () if task_id else list(history.marks):
        node = mark.worker.rsplit(":", 2)[0]
        if mark.at >= first and node in rows:
            rows[node].marks.append((place(mark.at), "came" if mark.came else "went"))
    shown = [row for _, row in sorted(rows.items()) if row.lanes or row.waiting]
    kinds = {each.kind for row in shown for lane in row.lanes for each in lane}
    return Picture(rows=shown, ticks=list(_ticks(seconds)), ends=sorted(kinds))


def _drawn(bar: Bar, history: History, place: Callable[[float], float]) -> Drawn:
    at, to = place(bar.begin), 100.0 if bar.ended is None else place(bar.ended)
    runs = to if bar.started is None else min(to, place(bar.started))
    moved = [place(each) for each in history.extensions(bar.lease)]
    return Drawn(bar=bar, at=at, runs_at=runs, to=max(to, at + 0.15), extensions=moved)


def _add(row: Row, drawn: Drawn) -> bool:
    """Put a bar into the first lane with room for it; False: there is none."""
    for lane in row.lanes:
        if lane[-1].to <= drawn.at:
            lane.append(drawn)
            return True
    if len(row.lanes) >= LANES:
        return False
    row.lanes.append([drawn])
    return True


def _ticks(seconds: float) -> Iterator[tuple[float, str]]:
    for number in range(TICKS + 1):
        left = seconds * (TICKS - number) / TICKS
        yield number * 100 / TICKS, f"{left / 60:g} min ago" if left else "now"


def document(bars: Iterable[Bar], history: History) -> dict[str, Any]:
    """Return a history as a JSON document."""
    return {
        "since": history.since,
        "until": history.timeline.until,
        "left_out": history.left_out,
        "deliveries": [
            {
                "task": bar.name,
                "task_id": bar.task_id,
                "worker": bar.worker,
                "token": bar.token,
                "granted": bar.granted,
                "started": bar.started,
                "ended": bar.ended,
                "end": bar.end,
                "why": bar.why,
                "extended": list(history.extensions(bar.lease)),
            }
            for bar in bars
        ],
        "workers": [
            {"worker": mark.worker, "at": mark.at, "came": mark.came} for mark in history.marks
        ],
    }
