"""Receives task events for the timeline while there are viewers: the ends of deliveries.

Workers that sent none before are asked to stop when the last viewer is gone.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

import click

from celery_lease.cli.broker import reached
from celery_lease.cli.sources import sources
from celery_lease.cli.trace import Listeners, listening
from celery_lease.web.watch import SLOW_AFTER, PageWatch

logger = logging.getLogger("celery_lease.web")

#: Seconds between two checks for viewers, and before another attempt.
PAUSE = 1.0


@dataclass
class Events:
    """Listens in a thread of its own, from the first viewer on."""

    watch: PageWatch
    _starting: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start listening; later calls do nothing."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="celery-lease-web-events", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Make the workers stop sending; the watch is over by now."""
        if self._thread is not None:
            self._thread.join(3 * PAUSE)

    def _is_viewed(self) -> bool:
        idle = self.watch.clock.now() - self.watch.viewed_at
        return not self.watch.over.is_set() and idle <= SLOW_AFTER

    def _run(self) -> None:
        while not self.watch.over.wait(PAUSE):
            if self._is_viewed():
                try:
                    self._listen()
                except click.ClickException as exc:  # the watch informs the viewers
                    logger.debug("no events: %s", exc.message)
                except Exception as exc:  # noqa: BLE001  (kombu's transports raise any kind)
                    logger.debug("no events: %r", exc)

    def _listen(self) -> None:
        app = self.watch.app
        with sources(app) as found, reached(app.connection_for_read()) as own:
            if found.ask is None:
                self.watch.over.wait(SLOW_AFTER)
                return
            workers = Listeners(found.ask)
            with listening(app, own, self.watch.history.hear) as drain:
                try:
                    workers.begin()
                    while self._is_viewed():
                        workers.add(drain())
                finally:
                    workers.restore()
