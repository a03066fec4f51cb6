"""What crosses between a broker driver and everything above it.

A driver acts and translates, it never decides. Its answers have three values, and the third,
:attr:`Answer.UNKNOWN`, is neither a renewal nor a loss: the holder goes on until its deadline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_lease.core.dead import DeadLetters
    from celery_lease.core.records import Records


class Answer(Enum):
    """What the broker says of one lease."""

    HELD = "held"  #: done, and the lease was the asker's own
    LOST = "lost"  #: nothing was changed; the delivery is over or somebody else's
    UNKNOWN = "unknown"  #: no answer; it may or may not have been done


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a consumer asks for when it takes a message under a lease."""

    seconds: float  #: time until the lease expires
    longest: float = 0.0  #: seconds for which the lease may be wanted in all, extensions included
    about: Mapping[str, Any] = field(default_factory=dict)  #: kept beside the claim, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One delivery of one message, held by one consumer under a lease."""

    tag: str  #: names this delivery, and only this one, at the broker: the fence
    token: int  #: fencing token; grows over all deliveries of a task id
    queue: str
    deliveries: int  #: this one included
    losses: int  #: earlier deliveries that ended by crash or expiry, as far as that is known
    asked_at: float  #: clock reading before the call that made the claim
    seconds: float  #: granted for this long, counted from no earlier than ``asked_at``
    provisional: bool = False  #: the broker's own expiry is another yet: to be extended soon
    limit: float = math.inf  #: seconds after ``asked_at`` beyond which nothing can extend it
    delivery_limit: int | None = None  #: after so many the broker dead-letters it by itself


@dataclass(frozen=True, slots=True)
class Renewal:
    """Ask that a lease expire ``seconds`` from when the broker reads this."""

    tag: str
    seconds: float
    late: bool = False  #: accept a lease that has expired but that nobody took since


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """A message whose holder was too late, and that is back in its queue."""

    tag: str
    queue: str
    late: float  #: seconds between expiry and reaping
    about: Mapping[str, Any]
    leased: bool = True  #: else a plain one, after the broker's visibility timeout
    error: str = ""  #: why it could not be returned; it stays, and is tried again later
    unclaimed: bool = False  #: it was on its way to a worker that never claimed it
    rested: bool = False  #: it was given up before, and only waited for its time to go back


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a broker can and cannot do, for the checks at start and for the docs."""

    extends: bool  #: an expiry can be moved
    fences: bool  #: the broker itself turns away a former holder
    confirms: bool  #: the broker can say whether an expired lease is still the asker's
    granularity: float  #: seconds; expiries are rounded to this
    tells_losses: bool = True  #: else those count that this process has seen
    reaps: bool = False  #: expired messages come back by the driver, not by the broker itself
    buries: bool = False  #: dead letters are the driver's to move, not the broker's
    drops: bool = False  #: the broker does something of its own with what is dropped
    records: bool = False  #: what is held, waits or was lost can be looked up without a worker


class Holder(Protocol):
    """The consumer's side of leasing: decides what a channel only carries out."""

    def terms(self, message: Any) -> Terms | None:
        """Return the terms on which to take *message*, or None to take it without a lease."""
        ...

    def claimed(self, claim: Claim, message: Any) -> None:
        """Take note of a message that was just claimed, before anybody sees it."""
        ...

    def complete(self, tag: str) -> None:
        """Acknowledge, or drop, the message: it is never delivered again."""
        ...

    def drop(self, tag: str) -> None:
        """Drop the message, where the broker tells that from an acknowledgement."""
        ...

    def lost(self, tags: Sequence[str]) -> None:
        """Take note that the broker has given messages to others, whatever their leases say."""
        ...

    def hand_back(self, tags: Sequence[str], *, front: bool) -> None:
        """Return messages to their queues; at the front, the last of *tags* is delivered first."""
        ...

    def keeps(self, tag: str) -> bool:
        """Tell whether work on the message goes on although its channel closes."""
        ...

    def unclaimed(self, attempt: Any) -> None:
        """Return a message whose claim failed or was not answered, as soon as that works."""
        ...

    @property
    def backlogged(self) -> bool:
        """Whether the broker refuses writes, so that nothing more should be taken from it."""
        ...


class Driver(Protocol):
    """Leases at one broker. Methods may be called from any thread and block for a bounded time."""

    capabilities: Capabilities

    def extend(self, renewals: Sequence[Renewal], *, timeout: float) -> list[Answer]:
        """Move expiries, all in as few round trips as the broker allows, never raising."""
        ...

    def complete(self, tags: Sequence[str]) -> list[Answer]:
        """Acknowledge messages whose claim is still the asker's, never raising."""
        ...

    def drop(self, tags: Sequence[str]) -> list[Answer]:
        """Drop messages, never raising; where the broker tells that from :meth:`complete`."""
        ...

    def hand_back(self, tags: Sequence[str], *, orderly: bool, front: bool) -> list[Answer]:
        """Return messages to their queues; an orderly return does not count as a loss."""
        ...

    def return_unclaimed(self, attempts: Sequence[Any]) -> list[Answer]:
        """Return messages that were taken from a queue but maybe never claimed."""
        ...

    def reap(self, *, limit: int) -> list[Reaped]:
        """Return up to *limit* expired leases to their queues.

        What could not be returned is told of too, beyond the limit.

        Raises:
            OSError: The broker did not answer; try again at the next sweep.
        """
        ...

    def overdue(self, *, limit: int) -> list[Reaped]:
        """Return what :meth:`reap` would return, and change nothing; where the driver reaps.

        Raises:
            OSError: The broker did not answer.
        """
        ...

    def bury(self, tag: str, queue: str) -> Answer:
        """Move a held message to a dead-letter queue, never raising; where the driver buries.

        Asked again after :attr:`Answer.UNKNOWN`, it says whether the message got there. At a broker
        that cannot move a message in one step, it may get there twice, but never not at all.
        """
        ...

    def dead_letters(self) -> DeadLetters:
        """Return the dead-letter queues; where the driver buries."""
        ...

    def records(self) -> Records:
        """Return what can be looked up without a worker; where the driver records."""
        ...

    def close(self) -> None:
        """Close this driver's own connections."""
        ...
