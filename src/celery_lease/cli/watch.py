"""Collects all leases again and again, for live displays: ``lease top`` and the page.

One thread collects, for any number of readers. It rests between two rounds: for the interval, and
longer if a round takes more than a small share of a processor. Readers see that a broker does not
answer even while that thread waits for it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from celery_lease.cli.broker import ANSWER_TIMEOUT, BrokerAway
from celery_lease.cli.sources import sources
from celery_lease.core.clock import SystemClock, thread_seconds
from celery_lease.view import Collector, Sources, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery


#: The share of a processor that collecting may take.
SHARE = 0.04


@dataclass
class Watch:
    """Collects in a thread of its own; shares the collector, whose parts are replaced whole."""

    app: Celery
    names: Sequence[str] = ()  #: only these nodes; empty: all
    interval: float = 2.0  #: seconds between two rounds, and the wait for workers' replies
    collector: Collector = field(default_factory=Collector)
    clock: SystemClock = field(default_factory=SystemClock)
    over: threading.Event = field(default_factory=threading.Event)
    asks_since: float = float("inf")  #: clock reading at which the round under way began

    def ask_once(self) -> tuple[dict[str, Any], bool]:
        """Collect once, with new connections; return the replies, and whether workers can be asked.

        Raises:
            click.ClickException: The broker is away.
        """
        with sources(self.app) as found:
            return self.ask(found), found.ask is not None

    def run(self) -> None:
        """Collect again and again until it is over; a broker that is away may come back."""
        self.asks_since = self.clock.now()
        while not self.over.is_set():
            try:
                with sources(self.app) as found:
                    while self.is_wanted():
                        began, spent = self.clock.now(), thread_seconds()
                        self.ask(found)
                        cost = thread_seconds() - spent
                        rest = max(began + self.interval - self.clock.now(), cost / SHARE)
                        self._pause(max(0.0, rest))
            except click.ClickException as exc:
                self.failed(exc.message)
            except Exception as exc:  # noqa: BLE001  (it is shown, and the next round tries again)
                self.failed(repr(exc))
            self._pause(self.interval)

    def _pause(self, seconds: float) -> None:
        self.asks_since = float("inf")
        self.rest(seconds)
        self.asks_since = self.clock.now()

    def rest(self, seconds: float) -> None:
        """Wait before the next round."""
        self.over.wait(seconds)

    def is_wanted(self) -> bool:
        return not self.over.is_set()

    def look(self) -> View:
        return self.collector.view(self.clock.now())

    def trouble(self) -> str:
        """Return the reason why there is no newer view; "": there is none."""
        longest = 2 * self.interval + ANSWER_TIMEOUT  # a round asks the workers twice
        if self.clock.now() - self.asks_since <= longest:
            return self.collector.trouble
        with self.app.connection_for_write() as connection:
            return BrokerAway(connection, f"not within {longest:g} s").message

    def failed(self, why: str) -> None:
        self.collector.failed(why)

    def ask(self, found: Sources) -> dict[str, Any]:
        """Ask all sources once; return the workers' replies."""
        return self.collector.collect(
            found, self.clock.now, names=self.names, timeout=self.interval
        )
