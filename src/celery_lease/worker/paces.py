"""Measures how often the tasks of this worker beat and how long they run, for ``lease advise``.

The keeper sees the beats, so a beat costs nothing more; the precision of a gap is the keeper's
interval. Whether there was any beat is what the task's process wrote at the end of the body: the
keeper may not have looked in between. Guarded by the lock of the registry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_lease.board.spans import Span
from celery_lease.core.pace import Pace
from celery_lease.core.stats import MOST_PAIRS, OTHERS

if TYPE_CHECKING:
    from celery_lease.worker.entries import LeaseEntry

#: A shorter run says nothing about a task that beats rarely, in seconds.
SEEN = 2.0


class Paces:
    """The paces of one worker's tasks."""

    def __init__(self) -> None:
        self._paces: dict[str, Pace] = {}

    def seen(self, entry: LeaseEntry, beat: float, span: Span, now: float) -> None:
        """Record the keeper's look at a task in its body, before *entry* is updated."""
        if entry.span is not Span.BODY:
            return
        if span.stores:
            _add_last_gap(self._of(entry), entry, entry.beat, beat, now)
        elif beat > entry.beat:
            entry.beats += 1
            _add_gap(self._of(entry), entry, entry.beat, beat)

    def ended(self, entry: LeaseEntry, started: float, beat: float, now: float) -> None:
        """Record the end of a run: *started*, *beat* (its last) and *now* are monotonic seconds."""
        if not started or entry.ending is None:
            return
        pace, policy = self._of(entry), entry.lease.policy
        pace.mode, pace.extension = str(policy.mode), policy.extension
        if entry.ending.is_loss:
            pace.lost += 1
            return
        if not entry.span.stores:  # the end of its body was not seen
            _add_last_gap(pace, entry, max(entry.beat, started), beat, now)
        pace.runs += 1
        pace.longest_run = max(pace.longest_run, now - started)
        pace.silent += not entry.beats and now - started > SEEN
        pace.late += entry.gap >= policy.extension

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the paces for JSON, by task."""
        return {name: pace.to_dict() for name, pace in self._paces.items()}

    def _of(self, entry: LeaseEntry) -> Pace:
        name = entry.lease.name
        if name not in self._paces:
            name = name if len(self._paces) < MOST_PAIRS else OTHERS[0]
            self._paces.setdefault(name, Pace())
        return self._paces[name]


def _add_last_gap(pace: Pace, entry: LeaseEntry, seen: float, beat: float, now: float) -> None:
    """Record the gap at the end of a body, with a last beat that the keeper had not *seen*."""
    last = max(seen, beat)
    _add_gap(pace, entry, *((seen, last) if last - seen > now - last else (last, now)))


def _add_gap(pace: Pace, entry: LeaseEntry, since: float, until: float) -> None:
    """Record a gap between two beats; declared quiet periods do not count."""
    gap = max(0.0, until - max(since, entry.quiet))
    entry.gap = max(entry.gap, gap)
    pace.add_gap(gap)
