"""The life of one lease, as a state machine without I/O.

::

    RESERVED ──start──► RUNNING ──┬─► COMPLETED     acknowledged (or dropped)
        │                  │      ├─► RELEASED      back in its queue
        └──────────────────┴──────┴─► LOST          expired, or taken by another holder

Invariants: an expiry is exactly the last beat plus the extension (or the end of a quiet period);
a lease without a new beat is never due; a deadline is counted from before the call that moved it,
so it is never later than the broker's own, and an earlier one (after a quiet period) holds from
before the call that sets it; a lease that ended keeps its end.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from celery_lease.core.delivery import Answer, Claim, Renewal
from celery_lease.core.loss import LossReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.core.policy import LeasePolicy


class State(StrEnum):
    """The state of a lease."""

    RESERVED = "reserved"
    RUNNING = "running"
    LOST = "lost"
    COMPLETED = "completed"
    RELEASED = "released"


_HELD = (State.RESERVED, State.RUNNING)


class Extension(NamedTuple):
    """One renewal under way: the request, and the lease's values if it is granted."""

    lease: Lease
    renewal: Renewal
    beat: float
    expiry: float
    asked_at: float


def _ignore(_: Lease) -> None:
    """Ignore a change of state."""


class Lease:
    """One lease of this worker. Not thread-safe: its registry's lock guards it.

    *on_change* is called with the lease after each change of its state, and for the first state,
    under that lock: it may record the change, and nothing else.
    """

    __slots__ = (
        "asked_at",
        "beat",
        "claim",
        "deadline",
        "extended_to",
        "lost",
        "name",
        "next_at",
        "on_change",
        "policy",
        "quiet_until",
        "received_at",
        "started_at",
        "state",
        "task_id",
    )

    def __init__(
        self,
        claim: Claim,
        policy: LeasePolicy,
        *,
        task_id: str,
        name: str,
        on_change: Callable[[Lease], None] = _ignore,
    ) -> None:
        self.claim = claim
        self.policy = policy
        self.task_id = task_id
        self.name = name
        self.state = State.RESERVED
        self.lost: LossReason | None = None
        self.received_at = claim.asked_at
        self.started_at: float | None = None
        self.beat = claim.asked_at
        self.quiet_until = 0.0
        self.asked_at = claim.asked_at  #: when the broker was asked for the present expiry
        #: No extension is due before; the least interval after the last one.
        first = claim.enough_for if claim.provisional else policy.reserved_interval
        self.next_at = claim.asked_at + first
        self.deadline = claim.asked_at + claim.seconds
        #: The broker's last known expiry, or None while a call may have moved it.
        self.extended_to: float | None = None if claim.provisional else self.deadline
        self.on_change = on_change
        on_change(self)

    @property
    def is_held(self) -> bool:
        """Whether this worker may act under the lease."""
        return self.state in _HELD

    def start(self, at: float) -> None:
        """Start the task's running time; *at* counts as a beat."""
        if self.state is State.RESERVED:
            self.state = State.RUNNING
            self.started_at = at
            # A task gets the whole lease at once, if it may not have it yet.
            due = at if self.extended_to is None else self.asked_at + self.policy.interval
            self.next_at = min(self.next_at, due)
            self.see(at)
            self.on_change(self)

    def see(self, beat: float, quiet_until: float = 0.0) -> None:
        """Record the latest beat, and the end of a declared quiet period."""
        if beat < self.deadline:
            self.beat = max(self.beat, beat)
            self.quiet_until = quiet_until

    def expiry(self) -> float:
        """Return when the lease should expire, by the task's progress."""
        expiry = max(self.beat + self.policy.extension, self.quiet_until)
        return min(expiry, self.last_expiry())

    def last_expiry(self) -> float:
        """Return when the lease ends even if its task beats."""
        limit = self.claim.asked_at + self.claim.limit
        if self.started_at is None:
            return limit
        return min(limit, self.started_at + self.policy.max_duration)

    def is_due(self, now: float) -> bool:
        """Whether there is a new expiry to send, and the least interval has passed."""
        if now < self.next_at or not self.is_held:
            return False
        expiry = self.expiry()
        return expiry > now and expiry != self.extended_to

    def begin_extension(self, now: float) -> Extension | None:
        """Return the extension to send now, of a lease that was due; None if it has ended since.

        The caller must send it, and apply the answer by :meth:`answered`.
        """
        expiry = self.expiry()
        if not self.is_held or min(expiry, self.deadline) <= now:
            return None
        # At the end of a quiet period the expiry moves to an earlier time. The old one no longer
        # counts, as the broker may apply the new one without an answer.
        self.deadline = min(self.deadline, expiry)
        self.extended_to = None
        renewal = Renewal(self.claim.tag, expiry - now)
        return Extension(self, renewal, self.beat, expiry, now)

    def answered(self, extension: Extension, answer: Answer) -> None:
        """Apply the broker's answer; UNKNOWN changes nothing, so the extension is repeated."""
        if not self.is_held:
            return
        if answer is Answer.HELD:
            self.asked_at, policy = extension.asked_at, self.policy
            waits = self.state is State.RESERVED
            self.next_at = self.asked_at + (policy.reserved_interval if waits else policy.interval)
            self.extended_to = self.deadline = extension.expiry
        elif answer is Answer.LOST:
            self.lose(LossReason.SUPERSEDED)

    def expire(self, now: float, *, storing: bool = False) -> bool:
        """Lose the lease if its deadline has passed; return whether that happened now.

        Args:
            now: The time, in monotonic seconds.
            storing: Its task has ended, and its outcome is not stored yet.
        """
        if not self.is_held or now < self.deadline:
            return False
        # By the deadline, not by now: at a late look both limits may have passed.
        if self.deadline < self.last_expiry():
            self.lose(LossReason.EXPIRED)
        elif storing:
            self.lose(LossReason.RESULT_NOT_STORED)
        else:
            limited = self.deadline >= self.claim.asked_at + self.claim.limit
            self.lose(LossReason.BROKER_LIMIT if limited else LossReason.MAX_DURATION)
        return True

    def lose(self, why: LossReason) -> None:
        """Mark the lease as gone for good."""
        if self.is_held:
            self.state = State.LOST
            self.lost = why
            self.on_change(self)

    def end(self, state: State) -> None:
        """End the lease as COMPLETED or RELEASED. A lost lease stays lost."""
        if self.is_held:
            self.state = state
            self.on_change(self)
