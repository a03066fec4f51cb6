"""The life of one lease, as a state machine without I/O.

::

    RESERVED ──start──► RUNNING ──┬─► COMPLETED     acknowledged (or dropped)
        │                  │      ├─► RELEASED      back in its queue
        └──────────────────┴──────┴─► LOST          expired, or taken by somebody else

Invariants: an expiry is exactly the last beat plus the extension (or the end of a quiet period);
a lease without a new beat is never due; a deadline is counted from before the call that moved it,
so it is never later than the broker's own, and an earlier one (after a quiet period) is obeyed from
before it is asked for; a lease that ended stays as it ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from celery_lease.core.delivery import Answer, Claim, Renewal

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.core.policy import LeasePolicy


class State(StrEnum):
    """Where a lease stands."""

    RESERVED = "reserved"
    RUNNING = "running"
    LOST = "lost"
    COMPLETED = "completed"
    RELEASED = "released"


class Lost(StrEnum):
    """Why a lease was lost."""

    EXPIRED = "expired"
    TAKEN = "another delivery owns the message"
    MAX_DURATION = "lease_max_duration reached"
    LIMIT = "the broker holds no message longer"


@dataclass(frozen=True, slots=True)
class Extension:
    """One renewal under way: what is asked, and what will be true if it is granted."""

    lease: Lease
    renewal: Renewal
    beat: float
    expiry: float
    asked_at: float


def _tell_nobody(_: Lease) -> None:
    """Stand in for who is told of a lease's states."""


class Lease:
    """One lease of this worker. Not thread-safe: its registry's lock guards it.

    *tell* is called with the lease each time it has come to a state, the first one included, under
    that lock: it may take note, and nothing else.
    """

    __slots__ = (
        "beat",
        "claim",
        "deadline",
        "extended_at",
        "extended_to",
        "lost",
        "name",
        "policy",
        "quiet_until",
        "received_at",
        "started_at",
        "state",
        "task_id",
        "tell",
    )

    def __init__(
        self,
        claim: Claim,
        policy: LeasePolicy,
        *,
        task_id: str,
        name: str,
        tell: Callable[[Lease], None] = _tell_nobody,
    ) -> None:
        self.claim = claim
        self.policy = policy
        self.task_id = task_id
        self.name = name
        self.state = State.RESERVED
        self.lost: Lost | None = None
        self.received_at = claim.asked_at
        self.started_at: float | None = None
        self.beat = claim.asked_at
        self.quiet_until = 0.0
        self.extended_at = -math.inf if claim.provisional else claim.asked_at
        self.deadline = claim.asked_at + claim.seconds
        #: The broker's expiry as last heard of, or None while a call may have moved it unheard.
        self.extended_to: float | None = None if claim.provisional else self.deadline
        self.tell = tell
        tell(self)

    @property
    def is_held(self) -> bool:
        """Whether this worker may act under the lease."""
        return self.state in (State.RESERVED, State.RUNNING)

    def start(self, at: float) -> None:
        """Hand the message to the pool; *at* counts as a beat."""
        if self.state is State.RESERVED:
            self.state = State.RUNNING
            self.started_at = at
            self.see(at)
            self.tell(self)

    def see(self, beat: float, quiet_until: float = 0.0) -> None:
        """Take note of the latest beat and of the end of a quiet period, if one was declared."""
        if beat < self.deadline:
            self.beat = max(self.beat, beat)
            self.quiet_until = quiet_until

    def expiry(self) -> float:
        """Return when the lease should expire, by what is known of the task's progress."""
        expiry = max(self.beat + self.policy.extension, self.quiet_until)
        return min(expiry, self.last_expiry())

    def last_expiry(self) -> float:
        """Return when a lease ends whatever its task does."""
        limit = self.claim.asked_at + self.claim.limit
        if self.started_at is None:
            return limit
        return min(limit, self.started_at + self.policy.max_duration)

    def due(self, now: float) -> Extension | None:
        """Return the extension to send now, or None if there is nothing new or it is too soon.

        What is returned must be sent, and answered with :meth:`answered`.
        """
        expiry = self.expiry()
        if not self.is_held or expiry == self.extended_to or expiry <= now:
            return None
        if now - self.extended_at < self.policy.interval:
            return None
        # The end of a quiet period brings the expiry forward: trust the old one no longer, the
        # broker may have moved it although no answer comes.
        self.deadline = min(self.deadline, expiry)
        self.extended_to = None
        renewal = Renewal(self.claim.tag, expiry - now)
        return Extension(self, renewal, self.beat, expiry, now)

    def answered(self, extension: Extension, answer: Answer) -> None:
        """Apply the broker's answer; an unknown one changes nothing, so it is asked again."""
        if not self.is_held:
            return
        if answer is Answer.HELD:
            self.extended_at = extension.asked_at
            self.extended_to = self.deadline = extension.expiry
        elif answer is Answer.LOST:
            self.lose(Lost.TAKEN)

    def expire(self, now: float) -> bool:
        """Lose the lease if its deadline has passed, and tell whether that happened now."""
        if not self.is_held or now < self.deadline:
            return False
        if now < self.last_expiry():
            self.lose(Lost.EXPIRED)
        else:
            limited = now >= self.claim.asked_at + self.claim.limit
            self.lose(Lost.LIMIT if limited else Lost.MAX_DURATION)
        return True

    def lose(self, why: Lost) -> None:
        """Mark the lease as gone for good."""
        if self.is_held:
            self.state = State.LOST
            self.lost = why
            self.tell(self)

    def end(self, state: State) -> None:
        """Settle the lease: COMPLETED or RELEASED. One that was lost stays lost."""
        if self.is_held:
            self.state = state
            self.tell(self)
