"""One lease as a row of a view."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from celery_lease.view.asking import node_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_lease.core.records import Recorded

#: States that only a view knows, beside those of a worker: the holder does not answer and the
#: broker still has the lease; the holder cannot be asked; the message is in a backoff after a loss;
#: the holder does not answer, and the broker has no records.
ORPHANED, HELD, RESTING, SILENT = "orphaned", "held", "resting", "silent"
#: The state of a message that waits for an exclusive key and has no holder.
PARKED = "parked"
#: The states of leases that come only from the broker's records.
ON_RECORD = frozenset({ORPHANED, HELD, RESTING})
#: Share of a lease below which the remaining time is highlighted.
SOON = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress that a task reported; parts may be unknown."""

    done: float | None = None
    total: float | None = None
    note: str = ""
    rate: float | None = None  #: items per second of a loop that resumes, over all its runs

    @property
    def share(self) -> float | None:
        """The share that is done, from 0 to 1; None: unknown."""
        if self.done is None or not self.total or self.total < 0:
            return None
        return float(min(1.0, max(0.0, self.done / self.total)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """A lease, from any source, or a parked message, which has none.

    Times are seconds since 1970, durations are seconds.
    """

    task: str
    id: str
    hostname: str  #: the node's name of the holder; "": unknown
    state: str  #: a worker's state, or one of this module's
    held_since: float  #: of a parked message: since when it is parked
    remaining: float  #: until the lease expires; 0: it is parked
    deliveries: int
    losses: int  #: earlier deliveries that were lost
    worker: str = ""  #: the holder's unique identity; "": unknown
    shown_as: str = ""  #: the holder's name if it is unique, else its identity
    queue: str = ""
    token: int = 0
    tag: str = ""  #: the delivery's tag at the broker
    lost: str | None = None  #: the reason, in the state ``lost``
    started_at: float | None = None
    beat_age: float | None = None  #: since the last beat; None: it does not run, or unknown
    deadline: float | None = None
    quiet: float | None = None  #: until the end of an announced quiet call
    progress: Progress = field(default_factory=Progress)
    storing: bool = False  #: its task has ended, and the outcome is not stored yet
    cancelled: bool = False
    key: str = ""  #: the exclusive key that its task holds, or waits for
    position: int | None = None  #: of a parked message in the line for that key, from 1
    max_deliveries: int | None = None  #: losses until it is dead-lettered; None: unknown
    pid: int | None = None
    mode: str = ""
    interruptible: bool = False  #: it can be handed over
    extension: float = 0.0
    runs_again_in: float | None = None  #: until its message is delivered again, if it stays so
    heard_age: float | None = None  #: since its worker's last reply, if it does not answer now

    @classmethod
    def from_reply(cls, label: str, node: str, facts: Mapping[str, Any]) -> LeaseRow:
        """Return a row from a worker's reply; unknown facts of other versions are ignored."""
        known = {name: facts[name] for name in _NAMES if name in facts}
        progress = facts.get("progress") or {}
        known["progress"] = Progress(
            done=progress.get("done"),
            total=progress.get("total"),
            note=progress.get("note") or "",
            rate=progress.get("rate"),
        )
        return cls(**{**known, "hostname": node, "shown_as": label})

    @classmethod
    def recorded(cls, lease: Recorded, state: str) -> LeaseRow:
        return cls(
            task=lease.task,
            id=lease.task_id,
            hostname=node_of(lease.worker),
            shown_as=node_of(lease.worker),
            worker=lease.worker,
            state=state,
            held_since=lease.since,
            remaining=round(lease.remaining, 3),
            deliveries=lease.deliveries,
            losses=lease.losses,
            queue=lease.queue,
            token=lease.token,
            tag=lease.tag,
            key=lease.key,
            position=lease.position,
        )

    @property
    def kind(self) -> str:
        """The kind of its state, for a colour."""
        if self.state in {"lost", ORPHANED, SILENT}:
            return "bad"
        if self.cancelled:
            return "odd"
        return "good" if self.state == "running" else "calm"

    @property
    def is_soon(self) -> bool:
        """Whether the lease has little time left."""
        return 0 < self.remaining < self.extension * SOON

    def has_text(self, text: str) -> bool:
        """Whether a reader's filter finds *text* in it."""
        said = (self.task, self.id, self.shown_as, self.worker, self.queue, self.state, self.key)
        return text.lower() in "\n".join([*said, self.progress.note]).lower()

    def aged(self, seconds: float) -> LeaseRow:
        """Return the row as of some seconds later, if nothing changes."""
        again, left = self.runs_again_in, self.remaining - seconds
        return replace(
            self,
            beat_age=None if self.beat_age is None else self.beat_age + seconds,
            # A record may be overdue, by a negative number; a worker never reports less than 0.
            remaining=left if self.state in ON_RECORD else max(0.0, left),
            runs_again_in=None if again is None else max(0.0, again - seconds),
        )


_NAMES = tuple(each.name for each in fields(LeaseRow))
