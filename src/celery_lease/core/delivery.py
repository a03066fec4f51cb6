"""The data between a broker driver and its callers, and the interface of a holder.

A driver acts and translates, it never decides. Its answers have three values, and the third,
:attr:`Answer.UNKNOWN`, is neither a renewal nor a loss: the holder goes on until its deadline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_lease.core.keys import Exclusive, KeyAnswer

T = TypeVar("T")


class Answer(Enum):
    """The broker's answer about one lease."""

    HELD = "held"  #: done, and the lease was the caller's own
    LOST = "lost"  #: nothing was changed; the delivery is over or has another holder
    UNKNOWN = "unknown"  #: no answer; the call may or may not have taken effect


def ask_in_batches(
    items: Sequence[T], size: int, ask: Callable[[Sequence[T]], list[Answer]]
) -> list[Answer]:
    """Ask about *size* items at a time; after a batch without an answer the rest is unknown."""
    answers: list[Answer] = []
    while len(answers) < len(items):
        said = ask(items[len(answers) : len(answers) + size])
        answers += said
        if set(said) == {Answer.UNKNOWN}:
            break
    return answers + [Answer.UNKNOWN] * (len(items) - len(answers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms on which a consumer takes a message under a lease."""

    seconds: float  #: time until the lease expires
    longest: float = 0.0  #: seconds for which the lease may be needed in all, extensions included
    waits: bool = False  #: an expiry is no loss before the driver's ``begin`` is called
    about: Mapping[str, Any] = field(default_factory=dict)  #: stored beside the claim, for people
    exclusive: Exclusive | None = None  #: the key that its task needs; where there are ``keys``


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One delivery of one message, held by one consumer under a lease."""

    tag: str  #: the delivery id at the broker, never used for another delivery: the fence
    token: int  #: fencing token; grows over all deliveries of a task id
    queue: str
    deliveries: int  #: this one included
    losses: int  #: known earlier deliveries that ended by a crash or an expiry
    asked_at: float  #: clock reading before the call that made the claim
    seconds: float  #: granted for this long, counted from no earlier than ``asked_at``
    provisional: bool = False  #: the broker's own expiry is different yet: extend it soon
    #: Seconds for which that expiry is enough for a message that waits.
    enough_for: float = 0.0
    limit: float = math.inf  #: seconds after ``asked_at`` beyond which no extension is possible
    delivery_limit: int | None = None  #: the broker dead-letters it by itself after this many
    turned_away: KeyAnswer | None = None  #: its task is to be revoked, not run
    parked_at: float | None = None  #: since when it waited for its key, in seconds since 1970


class Renewal(NamedTuple):
    """A request that a lease expire ``seconds`` after the broker has read it."""

    tag: str
    seconds: float
    late: bool = False  #: accept a lease that has expired, if there is no other holder since


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """A message whose holder was late, and that is back in its queue."""

    tag: str
    queue: str
    late: float  #: seconds between expiry and reaping
    about: Mapping[str, Any]
    leased: bool = True  #: False: a plain message, after the broker's visibility timeout
    error: str = ""  #: the reason why it could not be returned; it stays, and is tried again later
    unclaimed: bool = False  #: it was on its way to a worker that never claimed it
    rested: bool = False  #: its backoff before the next delivery is over


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The abilities of a broker, for the checks at start and for the docs."""

    extends: bool  #: an expiry can be moved
    fences: bool  #: the broker itself refuses a former holder
    confirms: bool  #: the broker can confirm an expired lease that is still the caller's
    granularity: float  #: seconds; expiries are rounded to this
    reports_losses: bool = True  #: False: only losses that this process has seen count
    reaps: bool = False  #: the driver returns expired messages, not the broker itself
    dead_letters: bool = False  #: the driver moves dead letters, not the broker
    drops: bool = False  #: the broker has a treatment of its own for dropped messages
    records: bool = False  #: held, waiting and lost messages can be looked up without a worker
    outlives: bool = True  #: a lease outlives the connection by which its message came
    checkpoints: bool = False  #: checkpoints can be kept beside the messages
    keys: bool = False  #: exclusive keys can be enforced


class Holder(Protocol):
    """The consumer's side of leasing: makes the decisions that a channel carries out."""

    def terms(self, message: Any) -> Terms | None:
        """Return the terms on which to take *message*, or None to take it without a lease."""
        ...

    def plain_task(self, message: Any) -> str:
        """Return the name of a message's task if none of its messages gets a lease; else ""."""
        ...

    def claimed(self, claim: Claim, message: Any) -> None:
        """Store a message that was just claimed, before anything else handles it."""
        ...

    def complete(self, tag: str) -> None:
        """Acknowledge, or drop, the message: it is never delivered again."""
        ...

    def drop(self, tag: str) -> None:
        """Drop the message, where the broker distinguishes that from an acknowledgement."""
        ...

    def lost(self, tags: Sequence[str]) -> None:
        """Mark leases as lost whose messages the broker has delivered elsewhere."""
        ...

    def requeue(self, tags: Sequence[str], *, front: bool) -> None:
        """Return messages to their queues; at the front, the last of *tags* is delivered first."""
        ...

    def keeps(self, tag: str) -> bool:
        """Return whether work on the message goes on after its channel is closed."""
        ...

    def outran(self, message: Any, held: float, queue: str, timeout: float) -> bool:
        """Handle the return of a message without a lease: the broker waits no longer.

        Args:
            message: The message; it is settled already.
            held: Seconds since its receipt.
            queue: Its queue.
            timeout: Seconds that the broker waits; 0: it has closed the channel, perhaps for this.

        Returns:
            Whether its task has begun: then its return counts as a failure.
        """
        ...

    def parked(self, message: Any, queue: str, by: str) -> None:
        """Take note that a message waits at the broker for its key, which task *by* holds."""
        ...

    def unclaimed(self, delivery: Any) -> None:
        """Return a message whose claim failed or was not answered, as soon as possible."""
        ...

    @property
    def backlogged(self) -> bool:
        """Whether no more messages should be taken, such as while returns to the broker fail."""
        ...
