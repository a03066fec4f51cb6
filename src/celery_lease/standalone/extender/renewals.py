"""The extensions of one message within one block: when each is sent, by which thread, for how long.

Beats, a thread for beats within the interval, and the end of the block meet here. The thread that
finds an extension due claims it under the lock and calls the broker without it; the others go on.
"""

from __future__ import annotations

import logging
import threading
from math import ceil, inf
from typing import TYPE_CHECKING, Protocol

from celery_lease.core.delivery import Answer
from celery_lease.core.errors import ReceiptHandleExpiredError
from celery_lease.core.stats import standalone

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.core.clock import Clock
    from celery_lease.core.heartbeat import Heartbeat

    from .config import LeaseExtenderConfig

logger = logging.getLogger(__name__)

#: Seconds for which the end of a block waits for another thread's call to the broker.
STOP_TIMEOUT = 30.0

#: Seconds until the first retry of a failed call without a new beat; doubled after each failure, up
#: to this share of the extension, so that a lease has time for several attempts.
FIRST_RETRY, RETRY_SHARE = 0.1, 1 / 5


class Extendable(Protocol):
    """A received message with a receipt."""

    @property
    def id(self) -> object:
        """Its name in log lines."""
        ...

    def extend_visibility(self, seconds: int, /) -> object:
        """Keep it from other consumers for ``seconds`` from now on; a whole number, as SQS needs.

        Raises:
            ReceiptHandleExpiredError: The receipt is no longer valid.
        """
        ...


class Waiter(Protocol):
    """A function by which a thread waits; tests replace it to use a clock of their own."""

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
        self._heartbeat = heartbeat  # None: the process's life is proof enough
        # Guards everything below. Beats, the thread and the end of the block take it; never held
        # during a call to the broker: the caller has set _in_flight under it before.
        self._turn = threading.Condition()
        self._counted: int | None = None  # number of the newest beat that an extension included
        self._tried: int | None = None  # number of the newest beat that an attempt included
        self._next_at = -inf  # clock reading before which no call is made
        self._failures = 0  # calls without an answer since the last one with an answer
        self._retry_at = -inf  # clock reading before which no call is repeated for the same beat
        self._in_flight = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._wakes_at = inf  # when the thread looks next; inf: not before a notification
        # The thread waits for the interval's end and will include the newest beat then: a beat has
        # nothing to do. Beats read it without the lock, after they have been counted; code that
        # sets it to False looks for new beats afterwards.
        self._covered = False

    def beaten(self) -> None:
        """Handle a beat: extend if that is due and no other thread will."""
        if self._covered:
            return
        with self._turn:
            seconds = self._claim()
            if seconds is None and self._owed():
                self._see_to_it_later()
        if seconds is not None:
            self._send(seconds)

    def start(self) -> None:
        """Make the thread extend without beats."""
        with self._turn:
            self._see_to_it_later()

    def close(self) -> None:
        """Make no further calls; wait, for a limited time, for a call under way."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()
            idle = self._wait(self._turn, lambda: not self._in_flight, STOP_TIMEOUT)
        if not idle:
            logger.warning(
                "extension of message %s: the broker has not answered for %g s, no longer waited "
                "for",
                self.message.id,
                STOP_TIMEOUT,
            )
        elif self._thread is not None:
            self._thread.join(STOP_TIMEOUT)  # it has nothing to do but to end

    def _owed(self) -> bool:
        """Whether there is a beat that no extension included. The caller holds the lock."""
        if self._closed:
            return False
        return self._heartbeat is None or self._heartbeat.beats != self._counted

    def _claim(self) -> int | None:
        """Claim the extension that is due, if one is; the caller holds the lock.

        Returns:
            The seconds to ask for, after which :meth:`_send` must follow; None: no extension is
            due.
        """
        now = self._clock.now()
        if self._in_flight or not self._owed() or now < self._due_at():
            return None
        seconds = self._seconds_left_of_the_newest_beat()
        if seconds <= 0:  # the host was suspended: the proof is too old
            return None
        self._next_at = now + self._config.interval
        self._in_flight = True
        return seconds

    def _due_at(self) -> float:
        """Return when a call may be made; after a failed attempt for a beat, when to retry it."""
        if self._heartbeat is not None and self._heartbeat.beats != self._tried:
            return self._next_at
        return max(self._next_at, self._retry_at)

    def _seconds_left_of_the_newest_beat(self) -> int:
        """Return the seconds from now, a whole number, rounded up as SQS rounds."""
        if self._heartbeat is None:
            return ceil(self._config.extension)
        # First: a beat between the two lines counts as a later one.
        self._counted = self._tried = self._heartbeat.beats
        return ceil(self._config.extension - self._heartbeat.elapsed())

    def _send(self, seconds: int) -> None:
        """Call the broker without a lock; the claim is released after any error."""
        answer, asked_at = Answer.UNKNOWN, self._clock.now()
        try:
            answer = self._ask(seconds)
        finally:
            if not getattr(self.message, "counts_extensions", False):
                took = self._clock.now() - asked_at
                standalone.answered(standalone.EXTENDER, "", answer.value, took)
            self._settle(answer)

    def _ask(self, seconds: int) -> Answer:
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
        logger.debug("extended message %s by %d s", self.message.id, seconds)
        return Answer.HELD

    def _settle(self, answer: Answer) -> None:
        with self._turn:
            self._in_flight = self._covered = False
            if answer is Answer.UNKNOWN:
                self._counted = None  # the beat is not extended yet
                self._back_off()
            else:
                self._failures, self._retry_at = 0, -inf
            if answer is Answer.LOST and self._heartbeat is None:
                self._closed = True
            self._turn.notify_all()
            if self._owed():
                self._see_to_it_later()

    def _back_off(self) -> None:
        """Delay the next attempt for the same beat; the caller holds the lock."""
        wait = min(FIRST_RETRY * 2.0**self._failures, self._config.extension * RETRY_SHARE)
        self._failures = min(self._failures + 1, 64)  # no float is larger than 2.0 ** 1023
        self._retry_at = self._clock.now() + wait

    def _see_to_it_later(self) -> None:
        """Leave the next extension to the thread; the caller holds the lock."""
        if self._thread is None:
            name = f"lease-extender-{self.message.id}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        elif self._due_at() < self._wakes_at:  # otherwise every single beat would wake it
            self._wakes_at = self._due_at()
            self._turn.notify_all()

    def _run(self) -> None:
        while self._wait_for_the_interval():
            with self._turn:
                seconds = self._claim()
            if seconds is not None:
                self._send(seconds)

    def _wait_for_the_interval(self) -> bool:
        """Wait until there is a beat to extend for, then until the call may be made.

        Returns:
            False: the block has ended.
        """
        with self._turn:
            self._wakes_at = inf
            self._wait(self._turn, lambda: self._closed or self._ready(), None)
            self._wakes_at = due = self._due_at()
            self._covered = due <= self._next_at  # not while it waits for a retry
            left = max(0.0, due - self._clock.now())
            self._wait(self._turn, lambda: self._closed or self._due_at() < due, left)
            self._covered = False
            return not self._closed

    def _ready(self) -> bool:
        return not self._in_flight and self._owed()
