"""Settles messages at the broker, and keeps the calls that were not answered.

The thread that ends a lease makes the call. Once a call was not answered, all later ones wait
behind it for the keeper: a broker that is silent costs the main loop one timeout, not one for each
message. No lock: a deque's own operations are atomic, and nothing here is counted.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from celery_lease.core import fields
from celery_lease.core.delivery import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.core.clock import Clock

logger = logging.getLogger(__name__)

#: Seconds between two rounds of calls of a worker that ends.
REST = 0.25


def _rest() -> None:
    threading.Event().wait(REST)


class Outbox:
    """Calls the broker, and keeps the items that it did not answer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: deque[tuple[Callable[[list[Any]], list[Answer]], list[Any]]] = deque()

    def send(self, how: Callable[[list[Any]], list[Answer]], what: list[Any]) -> bool:
        """Call *how* with *what*, unless earlier calls wait; False: it was not answered."""
        if what and self._left:
            self._left.append((how, what))
        elif what:
            return self.answered(how, what, how(what))
        return True

    def later(self, how: Callable[[list[Any]], list[Answer]], what: list[Any]) -> None:
        """Call *how* with *what* at the next :meth:`again`."""
        self._left.append((how, what))

    def again(self) -> int:
        """Repeat the calls that were not answered; return how many still are not.

        Ends at the first silence: each further call would only wait as long again, and leases wait
        for the caller.
        """
        for _ in range(len(self._left)):
            try:
                how, what = self._left.popleft()
            except IndexError:  # a closing worker's main thread and its keeper may both be here
                break
            if not self.answered(how, what, how(what)):
                break
        return len(self._left)

    def within(self, seconds: float, rest: Callable[[], object] = _rest) -> None:
        """Repeat the calls until all are answered, for *seconds* at most; *rest* comes between."""
        ends = self._clock.now() + seconds
        while self.again() and self._clock.now() < ends:
            rest()

    @property
    def left(self) -> int:
        """The number of messages whose calls were not answered."""
        return sum(len(what) for _, what in tuple(self._left))

    def answered(
        self, how: Callable[[list[Any]], list[Answer]], what: list[Any], said: list[Answer]
    ) -> bool:
        """Keep for *how* those of *what* that the broker did not answer; False: there are some."""
        again = []
        for each, answer in zip(what, said, strict=True):
            if answer is Answer.UNKNOWN:
                again.append(each)
            elif answer is Answer.LOST:
                extra = {fields.LEASE: each}
                text = "lease %s had ended: nothing was changed at the broker"
                logger.info(text, each, extra=extra)
        if again:
            self._left.append((how, again))
        return not again
