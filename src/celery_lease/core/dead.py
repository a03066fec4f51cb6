"""Dead letters: messages that were lost too often; they run again only if they are replayed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


#: Suffix of the dead-letter queue for messages of a dead-letter queue.
DEAD_AGAIN = ".dead"
#: In a record: the worker returned the message itself, and that counts as a loss.
LOST = "given up"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One message in a dead-letter queue."""

    task_id: str
    task: str
    queue: str  #: the dead-letter queue
    origin: str  #: the queue it came from
    key: str = ""  #: the broker's own name of that queue, priority included
    died_at: float | None = None  #: seconds since 1970 by the broker's clock
    losses: int = 0
    history: tuple[Mapping[str, Any], ...] = ()  #: its lost deliveries; only the last of them
    headers: Mapping[str, Any] = field(default_factory=dict)
    body: str = ""
    is_late: bool = False  #: nearer to the newest letter than to the oldest
    text: bytes = field(repr=False)

    @classmethod
    def of(
        cls, queue: str, facts: Mapping[str, Any], headers: Mapping[str, Any], **others: Any
    ) -> DeadLetter:
        """Return the letter with these *facts*, as a driver has stored them, and *headers*."""
        about = facts.get("about") or {}
        return cls(
            task_id=str(headers.get("id") or about.get("id") or ""),
            task=str(headers.get("task") or about.get("task") or ""),
            queue=queue,
            origin=facts["queue"],
            died_at=float(facts["at"]),
            losses=facts["losses"],
            history=tuple(facts.get("history") or ()),
            headers=headers,
            **others,
        )


def reason_of(loss: Mapping[str, Any]) -> str | None:
    """Return the reason of a recorded loss, for display; None: the record has none."""
    return "lost" if loss.get("reason") == LOST else loss.get("reason")


class DeadLetters(Protocol):
    """The dead-letter queues of a broker. All methods raise the errors of the client library."""

    def queues(self, likely: Sequence[str]) -> list[str]:
        """Return the names of the dead-letter queues that are not empty.

        If the broker cannot list queues, only the *likely* ones are looked at.
        """
        ...

    def letters(self, queue: str) -> Iterator[DeadLetter]:
        """Yield the letters in a *queue*, the oldest first."""
        ...

    def retry(self, letter: DeadLetter) -> bool:
        """Replay a letter to its own queue; False: it is no longer there."""
        ...

    def purge(self, letter: DeadLetter) -> bool:
        """Discard a letter; False: it is no longer there."""
        ...
