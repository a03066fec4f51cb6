"""Keeps the good receipt handles, and how long each is good: the fence that SQS does not enforce.

A handle is good for as long as no other client can have received its message. That time is counted
from before the call that set it, so it is never longer than at SQS; a call without an answer can
only make it shorter here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message as it was received, before it is claimed."""

    handle: str
    queue: str  #: the queue's name at SQS
    url: str
    receives: int  #: this one included
    asked_at: float  #: clock reading before the poll was sent
    served_at: int  #: when SQS answered, in seconds since 1970
    sent_ms: int | None  #: when the message was sent, in milliseconds since 1970; None: unknown
    backoff: int = 0
    raw: Mapping[str, Any] = field(default_factory=dict)  #: the message as SQS sent it


@dataclass(frozen=True, slots=True)
class Receipt:
    """One delivery that this process received."""

    handle: str
    queue: str  #: the queue's name at SQS
    url: str
    good_until: float
    backoff: int = 0  #: seconds of kombu's backoff policy before the next delivery
    raw: Mapping[str, Any] = field(default_factory=dict)  #: the message as SQS sent it


class Receipts:
    """The good receipts of this process. From any thread: each step is one operation of a dict.

    A handle that is not in it is stale. The worker's registry settles each handle in one thread.
    """

    def __init__(self) -> None:
        self._known: dict[str, Receipt] = {}

    def add(self, receipt: Receipt) -> None:
        self._known[receipt.handle] = receipt

    def good(self, handle: str, now: float) -> Receipt | None:
        """Return the receipt if its message cannot be visible to others yet."""
        receipt = self._known.get(handle)
        return receipt if receipt is not None and now < receipt.good_until else None

    def moved(self, handle: str, until: float) -> None:
        """Set a new timeout."""
        receipt = self._known.get(handle)
        if receipt is not None:
            self._known[handle] = replace(receipt, good_until=until)

    def maybe_moved(self, handle: str, until: float) -> None:
        """Set a new timeout that may or may not have reached SQS, if it is shorter."""
        receipt = self._known.get(handle)
        if receipt is not None and until < receipt.good_until:
            self.moved(handle, until)

    def forget(self, handle: str) -> None:
        self._known.pop(handle, None)

    def sweep(self, now: float) -> None:
        """Forget stale handles."""
        for handle, receipt in list(self._known.items()):
            if receipt.good_until <= now:
                self.forget(handle)

    def __len__(self) -> int:
        return len(self._known)
