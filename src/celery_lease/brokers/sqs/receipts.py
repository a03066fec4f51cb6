"""Which receipt handles are good, and until when at least: the fence that SQS does not build.

A handle is good for as long as nobody else can have received its message. That time is counted
from before the call that set it, so it is never longer than at SQS; a call that was not answered
can only make it shorter here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Receipt:
    """One delivery that this process received."""

    handle: str
    queue: str  #: its queue's name at SQS
    url: str
    good_until: float
    backoff: int = 0  #: seconds that kombu's backoff policy wants before the next delivery
    raw: Mapping[str, Any] = field(default_factory=dict)  #: the message as SQS gave it


class Receipts:
    """All that this process may still act on. Any thread may use it: each step is one of a dict's.

    What is not in it is stale. The worker's tables settle one handle by one thread at a time.
    """

    def __init__(self) -> None:
        self._known: dict[str, Receipt] = {}

    def add(self, receipt: Receipt) -> None:
        """Take note of a delivery."""
        self._known[receipt.handle] = receipt

    def good(self, handle: str, now: float) -> Receipt | None:
        """Return the receipt if nobody else can have its message yet."""
        receipt = self._known.get(handle)
        return receipt if receipt is not None and now < receipt.good_until else None

    def moved(self, handle: str, until: float) -> None:
        """Take note of a new timeout."""
        receipt = self._known.get(handle)
        if receipt is not None:
            self._known[handle] = replace(receipt, good_until=until)

    def maybe_moved(self, handle: str, until: float) -> None:
        """Take note of a new timeout that may or may not have reached SQS."""
        receipt = self._known.get(handle)
        if receipt is not None and until < receipt.good_until:
            self.moved(handle, until)

    def forget(self, handle: str) -> None:
        """Never act under a handle again."""
        self._known.pop(handle, None)

    def sweep(self, now: float) -> None:
        """Forget what is stale."""
        for handle, receipt in list(self._known.items()):
            if receipt.good_until <= now:
                self.forget(handle)

    def __len__(self) -> int:
        return len(self._known)
