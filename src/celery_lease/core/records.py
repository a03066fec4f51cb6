"""What a broker can tell of messages without asking any worker; for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A lease as its broker has it, by the broker's clock."""

    tag: str
    task_id: str
    task: str
    queue: str
    worker: str  #: who took it
    token: int
    deliveries: int
    losses: int
    since: float  #: seconds since 1970
    remaining: float  #: seconds until it expires; negative: since it has
    resting: bool = False  #: nobody holds it: it only waits before it goes back to its queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A message in its queue."""

    queue: str
    ahead: int  #: how many are delivered before it
    tag: str  #: the publisher's name for it
    task: str
    deliveries: int  #: so far
    losses: int


class Records(Protocol):
    """Looks into a broker. All raise what the client library raises."""

    def leases(self, task_id: str | None = None) -> Iterator[Recorded]:
        """Yield what is held, or what is held of one task; in no order."""
        ...

    def losses(self, tag: str) -> Sequence[Mapping[str, Any]]:
        """Return the deliveries of a message that were lost, the last of them, oldest first.

        Args:
            tag: A lease's, or a waiting message's.
        """
        ...

    def waiting(self, task_id: str, queues: Sequence[str]) -> Waiting | None:
        """Find a task's message in some queues, as far in as is reasonable; None: not found."""
        ...
