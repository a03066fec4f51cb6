"""The entries of a worker's registry of leases, and the ways in which a lease leaves it.

Guarded by the registry's lock; see :mod:`celery_lease.worker.registry`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from celery_lease.board import Board, Outcome, Slot
from celery_lease.board.spans import Span
from celery_lease.core import fields
from celery_lease.core.keys import Exclusive, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.worker.request import Request

    from celery_lease.core.lease import Lease
    from celery_lease.worker.registry import LeaseRegistry


class Ending(StrEnum):
    """The way in which a lease left this worker."""

    COMPLETED = "completed"
    HANDED_BACK = "handed back"  #: before its task started
    HANDED_OVER = "handed over"  #: by its task, to run elsewhere
    ENDED = "ended"  #: its task was out of time and was ended
    LOST = "lost"
    PROCESS_DIED = "process died"  #: its task's process died
    STALLED = "stalled"  #: its task was silent for too long, and was ended or disowned
    DEAD_LETTERED = "dead-lettered"
    PARKED = "parked"  #: its exclusive key was busy when its task was about to start
    DROPPED = "dropped"  #: revoked, because its exclusive key was busy
    REPLACED = "replaced"  #: revoked, because another task waits in its place

    def of(self, lease: Lease) -> Ending:
        """Return this ending, or ``LOST`` in its place if the *lease* was lost before."""
        return Ending.LOST if lease.lost is not None and self in _WHILE_HELD else self

    @property
    def is_loss(self) -> bool:
        """Whether the message went back as a loss."""
        return self in (Ending.LOST, Ending.PROCESS_DIED, Ending.STALLED)


#: How a lease ends whose task is revoked for its key.
REVOKED = {Verdict.DROPPED: Ending.DROPPED, Verdict.REPLACED: Ending.REPLACED}
_WHILE_HELD = (
    Ending.COMPLETED,
    Ending.HANDED_BACK,
    Ending.HANDED_OVER,
    Ending.ENDED,
    *REVOKED.values(),
)


@dataclass(slots=True)
class LeaseEntry:
    """An entry of the registry: a lease, with the facts that this worker knows of its task."""

    lease: Lease
    slot: Slot | None = None
    pid: int | None = None
    beat: float = 0.0  #: the task's own last beat; other proofs of progress may count for the lease
    quiet: float = 0.0  #: the end of the quiet period that the task declared
    beats: int = 0  #: beats in the task's body after the first that this process knows of
    gap: float = 0.0  #: the longest between two of them, in seconds
    look_at: float = 0.0  #: when the keeper looks at it next, before its task is in the pool
    begun: bool = False  #: an end without an outcome is a loss from here on
    #: Seconds after the death of its process in which the pool has to report it: the task's own
    #: rule decides then. The main thread sets it once, before the pool gets the task.
    grace: float = 0.0
    dead_since: float = 0.0  #: when the keeper first saw that the process is dead
    begin_sent: bool = False  #: the broker knows that it has begun, or will; under the lock
    unproven: bool = False  #: observe mode: heartbeat mode would have lost it
    worker: str = ""  #: the holder's identity; for the log
    why: dict[str, object] = field(default_factory=dict)  #: the facts known of its loss
    #: Celery's request for the message. The main thread sets it once, before the pool gets the
    #: task; others only read it.
    request: Request | None = None
    span: Span = Span.STARTING  #: where the run was when the keeper last looked
    storing_since: float = 0.0  #: when the keeper first saw that its outcome was being stored
    storing_logged: bool = False  #: a warning of slow storing was logged
    ending: Ending | None = None  #: the way in which it left this worker
    #: Releases its message, once the process that this worker kills is gone. The keeper's thread
    #: sets it before the kill; whichever thread learns of the end first calls it.
    release: Callable[[], None] | None = None
    exclusive: Exclusive | None = None  #: the key that its task needs
    holds_key: bool = False  #: the task has its key; under the lock
    takes_key: bool = False  #: the broker is being asked for the key; under the lock

    def outcome(self, board: Board) -> Outcome:
        """Return the outcome of its run that the task process wrote; ``UNREPORTED``: none yet."""
        return Outcome.UNREPORTED if self.slot is None else board.read_outcome(self.slot)

    @property
    def task(self) -> tuple[str, str]:
        """The name and the id of its task."""
        return self.lease.name, self.lease.task_id

    @property
    def fields(self) -> dict[str, object]:
        """The fields of a log line about it."""
        lease, claim = self.lease, self.lease.claim
        return fields.of_lease(lease.task_id, lease.name, claim.tag, claim.token, self.worker)


@dataclass(frozen=True, slots=True)
class LeaseHandle:
    """The reference of a request to its lease."""

    leases: LeaseRegistry
    tag: str
    token: int | None = None
    entry: LeaseEntry | None = None
    fault: Exception | None = None  #: why its task must not run

    def fields(self, request: Request) -> dict[str, object]:
        """Return the fields of a log line about a *request*, also after its lease has ended."""
        worker = self.leases.worker_id
        return fields.of_lease(request.id, request.name, self.tag, self.token, worker)


def ticket(leases: LeaseRegistry, lease: Lease, slot: Slot) -> dict[str, Any]:
    """Return the ticket for a task process, a :class:`celery_lease.core.ticket.Ticket`'s dict."""
    claim, policy = lease.claim, lease.policy
    return {
        "board": leases.board.address,
        "slot": slot.index,
        "generation": slot.generation,
        "task": lease.name,
        "id": lease.task_id,
        "tag": claim.tag,
        "token": claim.token,
        "deliveries": claim.deliveries,
        "confirms": leases.driver.capabilities.confirms,
        "extension": policy.extension,
        "mode": str(policy.mode),
        "on_lost": str(policy.on_lost),
        "longest": policy.max_duration,
        "longest_until": claim.asked_at + claim.limit,
        "worker": leases.worker_id,
        "publishes": leases.publishes,
    }
