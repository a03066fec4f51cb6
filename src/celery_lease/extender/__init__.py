"""Keep one message invisible while work on it goes on, without a Celery worker.

For plain kombu consumers and any queue that hands out receipts. What it decides: when to ask the
broker, and for how long. Its invariants:

* Without a new beat nothing is sent, and an expiry is exactly the last beat plus the extension:
  what is asked for is the extension less the beat's age.
* Two calls for one message are at least an interval apart. A beat within the interval is sent when
  the interval ends: by the next beat if one comes just then, else by a daemon thread, which is not
  even started for work that beats less often than that.
* After the block nothing is sent: the message has been handed back.
* Nothing that goes wrong here reaches the work.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from celery_lease.core.clock import SystemClock
from celery_lease.core.errors import AlreadyAttached

from .config import LeaseExtenderConfig
from .renewals import Extendable, Renewals, Waiter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_lease.core.clock import Clock
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
        """Prepare; nothing happens before :meth:`attach` or :meth:`extend`.

        Args:
            config: None: the defaults.
            clock: Measures the interval; None: the host's. A beat's age comes from its heartbeat.
            waiter: How threads wait.
        """
        self.config = config or LeaseExtenderConfig()
        self._clock = clock or SystemClock()
        self._waiter = waiter
        self._serving: Renewals | None = None
        self._lock = threading.Lock()  # guards _serving; taken on entering and leaving a block

    @contextmanager
    def attach(self, message: Extendable, heartbeat: Heartbeat) -> Iterator[None]:
        """Extend ``message`` on the beats of ``heartbeat`` while the block runs.

        The first beat in the block extends at once, in the beating thread, and then at most one an
        interval does. A beat may thus wait for the broker: give its client a short timeout.

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

        A daemon thread does it, first at once. It proves only that the process lives: work that
        hangs keeps its message. It stops when the receipt is not valid any more.

        Raises:
            AlreadyAttached: This extender serves a message; leave that block first.
        """
        if not self.config.enabled:
            yield
            return
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
