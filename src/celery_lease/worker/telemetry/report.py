"""Describes the leases that a worker holds, for remote control commands.

The facts of each lease are copied under the lock of the registry, which the keeper needs; the
board is read and the answer is built outside of it.

Invariant: a lease that ends in between is left out; its record may belong to another by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_lease import board as beatboard
from celery_lease.board import Board, Slot, spans
from celery_lease.core.lease import Lease, State
from celery_lease.core.loss import FLAG_CANCELLED

if TYPE_CHECKING:
    from collections.abc import Container

    from celery_lease.worker.registry import LeaseRegistry


class _Copy(NamedTuple):
    """The facts of a lease that can change at any moment; a tuple, to be quick under the lock."""

    lease: Lease  #: for the facts that never change
    state: State
    lost: str | None
    deadline: float
    beat: float
    started_at: float | None
    pid: int | None
    slot: Slot | None
    key: str


def describe(leases: LeaseRegistry, task_ids: Container[str] | None = None) -> list[dict[str, Any]]:
    """Return the leases that a worker holds as JSON-able facts, the longest held first.

    Times are seconds since 1970 by the worker's clock, durations are seconds.

    Args:
        leases: The worker's leases.
        task_ids: The tasks to describe; None: all.
    """
    copies = _copies(leases, task_ids)
    now, wall = leases.clock.now(), leases.clock.wall().timestamp()
    rows = [_row(each, leases, now, wall - now) for each in copies]
    return [row for row in rows if row is not None]


def _copies(leases: LeaseRegistry, task_ids: Container[str] | None) -> list[_Copy]:
    with leases.lock:
        return [
            _Copy(
                entry.lease,
                entry.lease.state,
                entry.lease.lost,
                entry.lease.deadline,
                entry.lease.beat,
                entry.lease.started_at,
                entry.pid,
                entry.slot,
                entry.exclusive.key if entry.exclusive is not None and entry.holds_key else "",
            )
            for entry in leases.entries()
            if task_ids is None or entry.lease.task_id in task_ids
        ]


def _row(copy: _Copy, leases: LeaseRegistry, now: float, epoch: float) -> dict[str, Any] | None:
    lease, claim = copy.lease, copy.lease.claim
    seen = _Seen.of(copy, leases.board, now)
    if seen is None:
        return None
    state = State.RUNNING if copy.state is State.RESERVED and seen.started_at else copy.state
    storing = state is State.RUNNING and spans.current(leases.board, copy.slot).stores
    return {
        "task": lease.name,
        "id": lease.task_id,
        "state": str(state),
        "storing": storing,
        "lost": copy.lost and str(copy.lost),
        "queue": claim.queue,
        "held_since": round(epoch + lease.received_at, 3),
        "started_at": round(epoch + seen.started_at, 3) if seen.started_at else None,
        "beat_age": round(max(0.0, now - seen.beat), 3) if seen.started_at else None,
        "remaining": round(max(0.0, copy.deadline - now), 3),
        "deadline": round(epoch + copy.deadline, 3),
        "quiet": round(seen.quiet_until - now, 3) if seen.quiet_until > now else None,
        "progress": {
            "done": seen.done,
            "total": seen.total,
            "note": seen.note,
            "rate": seen.rate,
        },
        "cancelled": seen.cancelled,
        "key": copy.key,
        "deliveries": claim.deliveries,
        "losses": claim.losses,
        "max_deliveries": lease.policy.max_deliveries,
        "token": claim.token,
        "tag": claim.tag,
        "pid": copy.pid,
        "mode": str(lease.policy.mode),
        "interruptible": lease.policy.interruptible,
        "extension": lease.policy.extension,
        "worker": leases.worker_id,
    }


@dataclass(frozen=True, slots=True)
class _Seen:
    """The facts that the task itself wrote to the board, with defaults before its first write."""

    started_at: float = 0.0
    beat: float = 0.0
    quiet_until: float = 0.0
    done: float | None = None
    total: float | None = None
    note: str = ""
    rate: float | None = None
    cancelled: bool = False

    @classmethod
    def of(cls, copy: _Copy, board: Board, now: float) -> _Seen | None:
        """Read a lease's record; None: it ended meanwhile, and the record may be another's."""
        slot = copy.slot
        if slot is None:
            return cls()
        started = board.read_time(slot, beatboard.STARTED) or copy.started_at or 0.0
        progress = board.read_progress(slot)
        seen = cls(
            started_at=started,
            beat=max(board.read_time(slot, beatboard.BEAT), started),
            quiet_until=board.read_time(slot, beatboard.QUIET),
            done=_finite(progress.done),
            total=_finite(progress.total),
            note=progress.note,
            rate=_finite(progress.rate(now)),
            cancelled=bool((board.read_flags(slot) or 0) & FLAG_CANCELLED),
        )
        return seen if board.is_latest(slot) else None


def _finite(number: float | None) -> float | None:
    """Return a number, or None for one that JSON does not have (infinity, NaN)."""
    return number if number is not None and math.isfinite(number) else None
