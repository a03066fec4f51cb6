"""Exclusive keys of the in-memory broker: who holds one, and the line of those that wait for it.

Called by who holds the store's lock. A parked message is in its line and nowhere else; one that is
woken goes back to the front of its queue, with its place.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_lease.core.keys import Exclusive, KeyAnswer, KeyUse, KeyUser, OnBusy, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

#: Keys of this package at the top of a message in its queue: its place in a line, and the id of the
#: task that took it.
PLACE, REPLACED = "place", "replaced"

Place = tuple[int, int, float]


@dataclass(order=True, slots=True)
class Waiting:
    """A parked message."""

    place: Place  #: 0 if it was delivered before, else 1; a number that grows; since when
    raw: Mapping[str, Any] = field(compare=False)
    queue: str = field(compare=False)
    tag: str = field(compare=False)
    about: Mapping[str, Any] = field(compare=False)
    exclusive: Exclusive = field(compare=False)


@dataclass(slots=True)
class Keys:
    """All keys of a store."""

    #: Tells the time; whether a lease is valid, by its tag and the time; what a lease is about.
    now: Callable[[], float]
    is_valid: Callable[[str, float], bool]
    about: Callable[[str], Mapping[str, Any]]
    #: Returns a message, and a lease that has expired, to the front of their queues.
    put: Callable[[str, Mapping[str, Any]], None]
    end: Callable[[str], object]
    holders: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    lines: dict[str, list[Waiting]] = field(default_factory=lambda: defaultdict(list))

    def is_free(self, exclusive: Exclusive, *, clear: bool = False) -> bool:
        """Whether one more may hold a key; *clear* ends the leases that have expired."""
        now, holders = self.now(), self.holders[exclusive.key]
        for tag in [tag for tag in holders if not self.is_valid(tag, now)] if clear else ():
            del holders[tag]
            self.end(tag)
        return sum(self.is_valid(tag, now) for tag in holders) < exclusive.limit

    def take(self, tag: str, exclusive: Exclusive) -> bool:
        """Let a started task hold its key, if there is room."""
        if tag not in self.holders[exclusive.key] and not self.is_free(exclusive, clear=True):
            return False
        self.holders[exclusive.key].setdefault(tag, self.now())
        return True

    def turn_away(
        self,
        tag: str,
        raw: Mapping[str, Any],
        queue: str,
        about: Mapping[str, Any],
        own: Exclusive,
    ) -> KeyAnswer:
        """Decide on a message whose key is busy, and park it if that is the answer.

        Its tag ends with the token of its claim.
        """
        ids = [str(self.about(each).get("id", "")) for each in self.holders[own.key]]
        holder = ids[0] if ids else ""
        if own.on_busy is OnBusy.DROP and about.get("id") not in ids:
            return KeyAnswer(Verdict.DROPPED, holder)
        came_before = bool(raw.get("lease")) or own.retried
        number = int(tag.rpartition("#")[2])
        place = raw.get(PLACE) or (0 if came_before else 1, number, self.now())
        line = self.lines[own.key]
        last = line[-1] if own.on_busy is OnBusy.REPLACE and line else None
        if last is not None and tuple(place) < last.place:
            return KeyAnswer(Verdict.REPLACED, str(last.about.get("id", "")))
        if last is not None:
            line.pop()
            self.put(last.queue, {**last.raw, REPLACED: about.get("id", "")})
        insort(line, Waiting(tuple(place), {**raw, PLACE: place}, queue, tag, about, own))
        return KeyAnswer(Verdict.PARKED, holder)

    def released(self, tag: str, exclusive: Exclusive | None) -> None:
        """Free the key of a message that has ended, and wake the first in its line."""
        if exclusive is None:
            return
        self.holders[exclusive.key].pop(tag, None)
        line = self.lines[exclusive.key]
        if line and self.is_free(line[0].exclusive):
            self._wake(line, line[0])

    def tend(self, wall: float) -> None:
        """Wake who was forgotten, or whose time is over; *wall*: seconds since 1970."""
        for line in self.lines.values():
            over = [each for each in line if (each.exclusive.expires or wall + 1) <= wall]
            free = line[:1] if line and self.is_free(line[0].exclusive) else []
            for each in over or free:
                self._wake(line, each)

    def purge(self, tag: str) -> bool:
        """Forget a parked message."""
        for line in self.lines.values():
            for each in line:
                if each.tag == tag:
                    line.remove(each)
                    return True
        return False

    def parked(self) -> dict[str, int]:
        counts: dict[str, int] = defaultdict(int)
        for each in itertools.chain.from_iterable(self.lines.values()):
            counts[each.queue] += 1
        return dict(counts)

    def in_use(self, epoch: float) -> Iterator[KeyUse]:
        """Yield the keys that are held or waited for; *epoch*: what the clock lacks to 1970."""
        now = self.now()
        for key in sorted({*self.holders, *self.lines}):
            held = [each for each in self.holders[key].items() if self.is_valid(each[0], now)]
            holders = [_user(tag, self.about(tag), "", since + epoch, 1) for tag, since in held]
            parked = [
                _user(each.tag, each.about, each.queue, each.place[2] + epoch, each.exclusive.limit)
                for each in self.lines[key]
            ]
            if holders or parked:
                limit = parked[-1].limit if parked else max(1, len(holders))
                yield KeyUse(key=key, limit=limit, holders=holders, parked=parked)

    def _wake(self, line: list[Waiting], each: Waiting) -> None:
        line.remove(each)
        self.put(each.queue, each.raw)


def _user(tag: str, about: Mapping[str, Any], queue: str, since: float, limit: int) -> KeyUser:
    return KeyUser(
        tag=tag,
        task=str(about.get("task", "")),
        task_id=str(about.get("id", "")),
        queue=queue,
        worker=str(about.get("worker", "")),
        since=since,
        limit=limit,
    )
