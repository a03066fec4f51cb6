"""The extensions of one message within one block: who sends the next one, when, for how long.

Beats, a thread for what beats leave over, and the end of the block meet here. Whoever finds an
extension due claims it under the lock and calls the broker without it; the others go on.
"""

from __future__ import annotations

import logging
import threading
from math import inf
from typing import TYPE_CHECKING, Protocol

from celery_lease.core.delivery import Answer
from celery_lease.core.errors import ReceiptHandleExpiredError

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.core.clock import Clock
    from celery_lease.core.heartbeat import Heartbeat

    from .config import LeaseExtenderConfig

logger = logging.getLogger(__name__)

#: Seconds that leaving a block waits for a call to the broker that another thread has under way.
STOP_TIMEOUT = 30.0

#: A beat younger than this many seconds counts as made just now: the way to the broker is longer,
#: and a receipt that takes whole seconds gets the configured number itself.
JUST_NOW = 0.001


class Extendable(Protocol):
    """A received message with a receipt."""

    @property
    def id(self) -> object:
        """What log lines call it."""
        ...

    def extend_visibility(self, seconds: float, /) -> object:
        """Keep it from other consumers for ``seconds`` from now on; may be a fraction.

        Raises:
            ReceiptHandleExpiredError: The receipt is not valid any more.
        """
        ...


class Waiter(Protocol):
    """How a thread waits; tests replace it to wait on a clock that they move."""

    def __call__(
        self, condition: threading.Condition, done: Callable[[], bool], timeout: float | None, /
    ) -> bool:
        """Wait like :meth:`threading.Condition.wait_for`; ``condition`` is held by the caller."""
        ...


class Renewals:
    """The extensions of one message within one block."""

    def __init__(
        self,
        message: Extendable,
        config: LeaseExtenderConfig,
        clock: Clock,
        waiter: Waiter,
        heartbeat: Heartbeat | None,
    ) -> None:
        self.message = message
        self._config = config
        self._clock = clock
        self._wait = waiter
        self._heartbeat = heartbeat  # None: to live is proof enough
        # Guards all that follows. Beats, the thread and the end of the block take it; never held
        # during a call to the broker: whoever calls has set _in_flight under it before.
        self._turn = threading.Condition()
        self._counted: int | None = None  # number of the newest beat that an extension counted
        self._next_at = -inf  # clock reading before which nothing is sent
        self._in_flight = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._idle = False  # the thread has nothing to do and needs to be told when it has

    def beaten(self) -> None:
        """Take notice of a beat; extend for it if it is time and nobody else is about to."""
        with self._turn:
            seconds = self._claim()
            if seconds is None and self._owed():
                self._see_to_it_later()
        if seconds is not None:
            self._send(seconds)

    def start(self) -> None:
        """Have the thread extend without beats."""
        with self._turn:
            self._see_to_it_later()

    def close(self) -> None:
        """Send nothing from now on; wait, but not for ever, for what is under way."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()
            idle = self._wait(self._turn, lambda: not self._in_flight, STOP_TIMEOUT)
        if not idle:
            logger.warning(
                "extension of message %s still waits for the broker after %g s, it is left behind",
                self.message.id,
                STOP_TIMEOUT,
            )
        elif self._thread is not None:
            self._thread.join(STOP_TIMEOUT)  # it has nothing left to do but to end

    def _owed(self) -> bool:
        """Whether there is a beat that no extension has counted. The caller holds the lock."""
        if self._closed:
            return False
        return self._heartbeat is None or self._heartbeat.beats != self._counted

    def _claim(self) -> float | None:
        """Take the right to send the one extension that is due; the caller holds the lock.

        Returns:
            The seconds to ask for, and :meth:`_send` must follow; None if nothing is due.
        """
        now = self._clock.now()
        if self._in_flight or now < self._next_at or not self._owed():
            return None
        seconds = self._seconds_left_of_the_newest_beat()
        if seconds <= 0:  # the host was suspended: what was proven then is worth nothing now
            return None
        self._next_at = now + self._config.interval
        self._in_flight = True
        return seconds

    def _seconds_left_of_the_newest_beat(self) -> float:
        if self._heartbeat is None:
            return self._config.extension
        self._counted = self._heartbeat.beats  # first: a beat between the two counts as a later one
        age = self._heartbeat.elapsed()
        return self._config.extension - (age if age > JUST_NOW else 0)

    def _send(self, seconds: float) -> None:
        """Call the broker without any lock; whatever it raises, the claim is given back."""
        answer = Answer.UNKNOWN
        try:
            answer = self._ask(seconds)
        finally:
            self._settle(answer)

    def _ask(self, seconds: float) -> Answer:
        try:
            self.message.extend_visibility(seconds)
        except ReceiptHandleExpiredError:
            logger.warning(
                "receipt of message %s is no longer valid, not extended", self.message.id
            )
            return Answer.LOST
        except Exception:
            logger.exception("message %s could not be extended, will try again", self.message.id)
            return Answer.UNKNOWN
        logger.debug("extended message %s by %g s", self.message.id, seconds)
        return Answer.HELD

    def _settle(self, answer: Answer) -> None:
        with self._turn:
            self._in_flight = False
            if answer is Answer.UNKNOWN:
                self._counted = None  # the beat is still to be counted, when the interval is over
            elif answer is Answer.LOST and self._heartbeat is None:
                self._closed = True
            self._turn.notify_all()
            if self._owed():
                self._see_to_it_later()

    def _see_to_it_later(self) -> None:
        """Leave what is owed to the thread; the caller holds the lock."""
        if self._thread is None:
            name = f"lease-extender-{self.message.id}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        elif self._idle:  # or every single beat would wake it
            self._idle = False
            self._turn.notify_all()

    def _run(self) -> None:
        while self._wait_for_the_interval():
            with self._turn:
                seconds = self._claim()
            if seconds is not None:
                self._send(seconds)

    def _wait_for_the_interval(self) -> bool:
        """Wait until something is owed, then until it may be sent.

        Returns:
            False when the block has ended.
        """
        with self._turn:
            self._idle = True
            self._wait(self._turn, lambda: self._closed or self._ready(), None)
            self._idle = False
            left = max(0.0, self._next_at - self._clock.now())
            self._wait(self._turn, lambda: self._closed, left)
            return not self._closed

    def _ready(self) -> bool:
        return not self._in_flight and self._owed()
