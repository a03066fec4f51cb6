"""Messages that were given up: lost so often that nobody shall try them again by himself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One message in a dead-letter queue."""

    task_id: str
    task: str
    queue: str  #: the dead-letter queue
    origin: str  #: the queue it came from
    key: str = ""  #: the broker's own name of where it came from, priority included
    died_at: float | None = None  #: seconds since 1970 by the broker's clock
    losses: int = 0
    history: tuple[Mapping[str, Any], ...] = ()  #: the deliveries that were lost, the last of them
    headers: Mapping[str, Any] = field(default_factory=dict)
    body: str = ""
    text: bytes = field(repr=False)


class DeadLetters(Protocol):
    """The dead-letter queues of a broker. All raise what the client library raises."""

    def queues(self, likely: Sequence[str]) -> list[str]:
        """Return the names of the queues that hold something.

        Of a broker that cannot be asked for them, of those that are *likely* to.
        """
        ...

    def letters(self, queue: str) -> Iterator[DeadLetter]:
        """Yield what lies in a *queue*, the oldest first."""
        ...

    def retry(self, letter: DeadLetter) -> bool:
        """Send a letter back to the queue it came from; False: it is not there any more."""
        ...

    def purge(self, letter: DeadLetter) -> bool:
        """Throw a letter away; False: it is not there any more."""
        ...
