"""What the broker is told of messages that leave this worker, until it has answered.

Told by whichever thread caused it. Once something was not answered, all that comes up meanwhile
waits behind it for the keeper: a broker that is silent costs the main loop one timeout, not one
for each message. No lock: a deque's own operations are atomic, and nothing here is counted.
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

#: Seconds between two questions of a worker that ends.
REST = 0.25


def _rest() -> None:
    threading.Event().wait(REST)


class Settling:
    """Tells the broker, and keeps what it did not answer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: deque[tuple[Callable[[list[Any]], list[Answer]], list[Any]]] = deque()

    def tell(self, how: Callable[[list[Any]], list[Answer]], what: list[Any]) -> None:
        """Tell the broker now, unless it has not answered before: then later."""
        if what and self._left:
            self._left.append((how, what))
        elif what:
            self._tell(how, what)

    def later(self, how: Callable[[list[Any]], list[Answer]], what: list[Any]) -> None:
        """Have the broker told at the next :meth:`again`."""
        self._left.append((how, what))

    def again(self) -> int:
        """Tell the broker once more what it did not answer; return what is still unanswered.

        Ends at the first silence: each further question would only wait as long again, and leases
        wait for the caller.
        """
        for _ in range(len(self._left)):
            try:
                how, what = self._left.popleft()
            except IndexError:  # a closing worker's main thread and its keeper may both be here
                break
            if not self._tell(how, what):
                break
        return len(self._left)

    def within(self, seconds: float, rest: Callable[[], object] = _rest) -> None:
        """Tell the broker until it has answered, for some seconds; *rest* comes in between."""
        ends = self._clock.now() + seconds
        while self.again() and self._clock.now() < ends:
            rest()

    @property
    def left(self) -> int:
        """How many messages the broker has not been told of."""
        return sum(len(what) for _, what in tuple(self._left))

    def _tell(self, how: Callable[[list[Any]], list[Answer]], what: list[Any]) -> bool:
        """Tell the broker; return whether it answered. What it did not answer is kept."""
        answers = list(zip(what, how(what), strict=True))
        again = [each for each, answer in answers if answer is Answer.UNKNOWN]
        if again:
            self._left.append((how, again))
        for each, answer in answers:
            if answer is Answer.LOST:
                extra = {fields.LEASE: each}
                text = "lease %s had ended: nothing was changed at the broker"
                logger.info(text, each, extra=extra)
        return not again
