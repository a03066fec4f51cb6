"""A broker's own records of messages, for commands that have no worker to ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A lease in its broker's records, by the broker's clock."""

    tag: str
    task_id: str
    task: str
    queue: str
    worker: str  #: the holder
    token: int
    deliveries: int
    losses: int
    since: float  #: seconds since 1970
    remaining: float  #: seconds until it expires; negative: since it expired
    resting: bool = False  #: it has no holder, and waits for the end of its backoff
    key: str = ""  #: the exclusive key for which it waits, parked
    position: int | None = None  #: in the line for that key, from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A message in its queue."""

    queue: str
    ahead: int  #: the number of messages that are delivered before it
    tag: str  #: its publisher's delivery tag
    task: str
    deliveries: int  #: so far
    losses: int


class Records(Protocol):
    """Reads a broker's records. All methods raise the errors of the client library."""

    def leases(self, task_id: str | None = None) -> Iterator[Recorded]:
        """Yield the held messages, all or those of one task, in no order."""
        ...

    def losses(self, tag: str) -> Sequence[Mapping[str, Any]]:
        """Return the last lost deliveries of a message, oldest first.

        Args:
            tag: The tag of a lease or of a waiting message.
        """
        ...

    def waiting(self, task_id: str, queues: Sequence[str]) -> Waiting | None:
        """Find a task's message in *queues*, up to a reasonable depth; None: not found."""
        ...
