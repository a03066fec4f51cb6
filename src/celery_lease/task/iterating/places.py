"""The places of a task's loops, as a tree: a loop within an item of another one lies below it.

Invariant: the place of a loop and those of the loops within its next item change in one step. A
reader in another thread never sees an item as completed together with the places within it, nor the
places of one item together with the place of another; either would skip items.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, NamedTuple

from celery_lease.core.clock import host_seconds
from celery_lease.task.iterating.cursors import decode, encode


class Mark(NamedTuple):
    """The progress of a loop."""

    at: Any  #: the place of the last completed item; None: there is none
    done: int  #: completed items, in all runs
    inside: dict[str, Place]  #: the loops within the next item
    over: bool = False  #: the loop has ended


@dataclass(slots=True, eq=False)
class Place:
    """The place of one loop."""

    by: str  #: the kind of places in its source
    run: int = 1  #: the number of the loop's current run
    size: float | None = None  #: number of items in the source
    begun: bool = True  #: this run of the task has begun it
    spent: float = 0.0  #: seconds that it took in all runs, without those since it was entered
    entered_at: float | None = None  #: host seconds, while it is open and reports progress
    mark: Mark = field(default_factory=lambda: Mark(None, 0, {}))

    def to_json(self) -> dict[str, Any]:
        mark = self.mark  # read once: see the module
        stored = {"by": self.by, "at": encode(mark.at), "done": mark.done, "run": self.run}
        optional = {
            "size": self.size,
            "over": mark.over,
            "inside": to_json(mark.inside),
            "spent": round(self.seconds(), 3),
        }
        return {**stored, **{name: value for name, value in optional.items() if value}}

    def seconds(self) -> float:
        """Return the seconds that the loop has taken in all its runs."""
        entered_at = self.entered_at
        return self.spent + (0.0 if entered_at is None else host_seconds() - entered_at)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Place:
        inside = from_json(stored.get("inside", {}))
        at, done, over = decode(stored["at"]), int(stored["done"]), bool(stored.get("over"))
        return cls(
            by=str(stored["by"]),
            run=int(stored["run"]),
            size=stored.get("size"),
            begun=False,
            spent=float(stored.get("spent", 0.0)),
            mark=Mark(at, done, inside, over),
        )


class Places:
    """The places of all loops of a run; at first those of the last run."""

    def __init__(self, stored: dict[str, Any] | None = None) -> None:
        """Begin with the places that are *stored*.

        Raises:
            KeyError: They are incomplete. Also TypeError, ValueError or AttributeError.
        """
        self.top = from_json(stored or {})
        self.changes = self.saved = 0  #: changes of places, and the number of them at the last save
        self.saved_at = 0.0  #: host seconds
        self._open: list[tuple[int, Place]] = []  # open loops, with their threads

    @property
    def changed(self) -> bool:
        return self.changes != self.saved

    def here(self) -> Place | None:
        """Return the innermost open loop of this thread, or None."""
        me = get_ident()
        return next((place for thread, place in reversed(self._open) if thread == me), None)

    def enter(self, place: Place) -> None:
        self._open.append((get_ident(), place))

    def leave(self, place: Place) -> None:
        """Record that a loop was left, by any thread."""
        self._open = [each for each in self._open if each[1] is not place]

    def forget(self) -> None:
        """Forget all places: the next items are other work."""
        self.top = {}
        self.changes += 1


def to_json(places: dict[str, Place]) -> dict[str, Any]:
    """Return the stored form of places."""
    return {name: place.to_json() for name, place in list(places.items())}


def from_json(stored: dict[str, Any]) -> dict[str, Place]:
    """Parse stored places."""
    return {name: Place.from_json(each) for name, each in stored.items()}
