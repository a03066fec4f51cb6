"""Keeps one message invisible while work on it goes on, without a Celery worker.

For plain kombu consumers and any queue with receipts. It decides when to call the broker, and for
how many seconds. Its invariants:

* Without a new beat no call is made, and an expiry is the last beat plus the extension: a call asks
  for the extension less the beat's age, in whole seconds, rounded up as SQS rounds.
* A call that failed is repeated for the same beat only after a pause, each twice as long as the one
  before, and not before the interval has ended.
* Two calls for one message are at least an interval apart. A beat within the interval is sent when
  the interval ends: by the next beat if one comes at that time, else by a daemon thread, which is
  not even started for work that beats less often than that.
* After the block no call is made: the message is the caller's again.
* No error here reaches the work.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from celery_lease.core.clock import Clock, SystemClock
from celery_lease.core.errors import AlreadyAttached
from celery_lease.core.faults import Fault
from celery_lease.settings import LeaseConfigError

from .config import LeaseExtenderConfig
from .renewals import Extendable, Renewals, Waiter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_lease.core.heartbeat import Heartbeat

__all__ = ["Extendable", "LeaseExtender", "LeaseExtenderConfig", "Waiter"]


class LeaseExtender:
    """Extends one message at a time, on beats or for as long as the process lives.

    Example::

        extender = LeaseExtender(LeaseExtenderConfig(interval=30, extension=120))
        heartbeat = Heartbeat()
        with extender.attach(message, heartbeat):
            for chunk in chunks:
                heartbeat.beat()
                encode(chunk)
    """

    def __init__(
        self,
        config: LeaseExtenderConfig | None = None,
        clock: Clock | None = None,
        *,
        waiter: Waiter = threading.Condition.wait_for,
    ) -> None:
        """Prepare; no call is made before :meth:`attach` or :meth:`extend`.

        Args:
            config: None: the defaults.
            clock: Measures the interval; None: the host's clock. A beat's age comes from its
                heartbeat.
            waiter: The function by which threads wait.
        """
        self.config = config or LeaseExtenderConfig()
        self._clock = clock or SystemClock()
        self._waiter = waiter
        self._serving: Renewals | None = None
        self._lock = threading.Lock()  # guards _serving; taken on entering and leaving a block

    @contextmanager
    def attach(self, message: Extendable, heartbeat: Heartbeat) -> Iterator[None]:
        """Extend ``message`` on the beats of ``heartbeat`` while the block runs.

        The first beat in the block extends at once, in the beating thread, and later at most one
        beat an interval. A beat may thus wait for the broker: give its client a short timeout.

        Raises:
            AlreadyAttached: This extender serves a message; leave that block first.
        """
        if not self.config.enabled:
            yield
            return
        with self._serve(message, heartbeat) as renewals:
            heartbeat.add_callback(renewals.beaten)
            try:
                yield
            finally:
                heartbeat.remove_callback(renewals.beaten)

    @contextmanager
    def extend(self, message: Extendable) -> Iterator[None]:
        """Extend ``message`` every interval while the block runs, for work that cannot beat.

        A daemon thread does it, first at once. It only proves that the process lives: work that
        hangs keeps its message. It stops when the receipt is no longer valid.

        Raises:
            AlreadyAttached: This extender serves a message; leave that block first.
            LeaseConfigError: The interval is 0: there would be no pause between two extensions.
        """
        if not self.config.enabled:
            yield
            return
        if self.config.interval == 0:
            rule = "must be above 0 for extend(), which has no beats to wait for"
            hint = f"set interval to {self.config.extension / 5:g}, or use attach() and beat"
            raise LeaseConfigError((Fault("interval", 0, rule, hint),), "the extender")
        with self._serve(message, None) as renewals:
            renewals.start()
            yield

    @contextmanager
    def _serve(self, message: Extendable, heartbeat: Heartbeat | None) -> Iterator[Renewals]:
        renewals = Renewals(message, self.config, self._clock, self._waiter, heartbeat)
        with self._lock:
            if self._serving is not None:
                raise AlreadyAttached(str(self._serving.message.id))
            self._serving = renewals
        try:
            yield renewals
        finally:
            try:
                renewals.close()
            finally:
                with self._lock:
                    self._serving = None
