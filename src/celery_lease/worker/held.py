"""What a worker's table of leases says of each one, and how one leaves it.

Guarded by the table's lock; see :mod:`celery_lease.worker.leases`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from celery_lease.core import fields

if TYPE_CHECKING:
    from celery.worker.request import Request

    from celery_lease.core.board import Slot
    from celery_lease.core.lease import Lease
    from celery_lease.worker.leases import Leases


class Ending(StrEnum):
    """How a lease left this worker."""

    COMPLETED = "completed"
    HANDED_BACK = "handed back"  #: before its task started
    HANDED_OVER = "handed over"  #: by its task, for another worker to go on
    ENDED = "ended"  #: its task was ended, being out of time
    LOST = "lost"
    STALLED = "stalled"  #: its task was silent for too long, and was ended or disowned
    BURIED = "dead-lettered"


@dataclass(slots=True)
class Held:
    """A lease with what this worker knows of the task under it."""

    lease: Lease
    slot: Slot | None = None
    pid: int | None = None
    beat: float = 0.0  #: the task's own last beat, whatever counts as one for the lease
    quiet: float = 0.0  #: the end of the quiet period that the task declared
    unproven: bool = False  #: observed, and heartbeat mode would have lost it
    worker: str = ""  #: whose it is; for the log

    @property
    def fields(self) -> dict[str, object]:
        """The fields of a log line about it."""
        lease = self.lease
        return {
            fields.TASK_ID: lease.task_id,
            fields.TASK_NAME: lease.name,
            fields.LEASE: lease.claim.tag,
            fields.TOKEN: lease.claim.token,
            fields.WORKER: self.worker,
        }


@dataclass(frozen=True, slots=True)
class Handle:
    """What a request keeps of its lease."""

    leases: Leases
    tag: str
    token: int | None = None

    def fields(self, request: Request) -> dict[str, object]:
        """Return the fields of a log line about a *request* under it, whatever became of it."""
        return {
            fields.TASK_ID: request.id,
            fields.TASK_NAME: request.name,
            fields.LEASE: self.tag,
            fields.TOKEN: self.token,
            fields.WORKER: self.leases.worker_id,
        }


def ticket(leases: Leases, lease: Lease, slot: Slot) -> dict[str, Any]:
    """Return what a task process needs to know of its lease."""
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
        "worker": leases.worker_id,
        **({"publishes": True} if leases.publishes else {}),
    }
