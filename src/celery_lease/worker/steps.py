"""The bootsteps that put leases into a worker.

``LeaseSettings`` refuses to start a worker with wrong settings or a broker without a driver.
``LeaseConsumer`` runs anew at each connection: it puts the channel under leases before anything
is consumed, and hands back what has not started when consuming ends.
"""

from __future__ import annotations

import logging
import os
import uuid
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.signals import worker_shutdown

from celery_lease import brokers, settings
from celery_lease.core.board import Board
from celery_lease.core.clock import SystemClock
from celery_lease.core.errors import LeaseError
from celery_lease.worker import compat
from celery_lease.worker.keeper import LONGEST_WAIT, Keeper
from celery_lease.worker.leases import Leases
from celery_lease.worker.policies import Policies
from celery_lease.worker.reaper import Reaper
from celery_lease.worker.service import Service

if TYPE_CHECKING:
    from celery.worker import WorkController
    from celery.worker.consumer import Consumer

    from celery_lease.core.lease import Lease

logger = logging.getLogger(__name__)

#: Seconds between two signs of life of the main loop.
LOOP_INTERVAL = 1.0


class LeaseSettings(bootsteps.StartStopStep):
    """Checks everything that can be wrong before the worker takes its first message."""

    def start(self, worker: WorkController) -> None:
        """Check settings, task options and broker.

        Raises:
            WorkerShutdown: Something is wrong; the log says what, all of it at once.
        """
        try:
            loaded = settings.load(worker.app.conf)
            if loaded.enabled:
                Policies(worker.app, loaded).check()
                brokers.check(worker.app.connection_for_read())
        except LeaseError as exc:
            logger.critical("worker not started: %s", exc)
            raise WorkerShutdown(EX_FAILURE) from None
        for warning in loaded.warnings:
            logger.warning("%s", warning)


class LeaseConsumer(bootsteps.StartStopStep):
    """Takes messages under leases, keeps them alive, and gives them back."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Consumer, **options: Any) -> None:
        super().__init__(consumer, **options)
        self.leases: Leases | None = None
        self._services: list[Service] = []
        consumer.leases = None

    def start(self, consumer: Consumer) -> None:
        """Put the new channel under leases; at the first start, begin to keep them."""
        loaded = settings.load(consumer.app.conf)
        if not loaded.enabled:
            return
        channel = compat.channel_of(consumer)
        if self.leases is None:
            self.leases = self._make_leases(consumer, channel, loaded)
            consumer.leases = self.leases
            self._start_services(self.leases, loaded)
        brokers.lease_messages(channel, self.leases.driver, self.leases, self.leases.clock)
        self._tick = compat.every(consumer, LOOP_INTERVAL, self._see_loop)

    def stop(self, consumer: Consumer) -> None:
        """Hand back what no pool has got: this consumer will never start it.

        Called when the worker shuts down, and when its connection is lost: then Celery forgets
        what it had reserved.
        """
        if self.leases is None:
            return
        self._tick.cancel()
        if compat.is_closing(consumer):
            self.leases.board.announce_shutdown()
        self.leases.hand_back(self.leases.unstarted())

    def _make_leases(
        self, consumer: Consumer, channel: Any, loaded: settings.Settings
    ) -> Leases:
        worker_id = f"{consumer.hostname}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        leases = Leases(
            brokers.driver(channel),
            Board.create(),
            SystemClock(),
            worker_id,
            Policies(consumer.app, loaded),
        )
        leases.loop_is_task = compat.is_solo(consumer)
        return leases

    def _start_services(self, leases: Leases, loaded: settings.Settings) -> None:
        keeper, reaper = Keeper(leases), Reaper(leases.driver)
        self._services = [
            Service(
                "celery-lease-keeper",
                lambda: keeper.run_once().wait,
                retry=1.0,
                on_death=compat.stop_worker,
            ),
            Service(
                "celery-lease-reaper",
                lambda: _then(reaper.run_once(), loaded.reaper_interval),
                retry=loaded.reaper_interval,
                on_death=compat.stop_worker,
            ),
        ]
        for service in self._services:
            service.start()
        leases.on_claimed = self._hurry
        # Signals hold receivers weakly; this step lives as long as its consumer.
        worker_shutdown.connect(self._stop_services)

    def _stop_services(self, **_: Any) -> None:
        for service in self._services:
            service.stop(timeout=2.0)

    def _hurry(self, lease: Lease) -> None:
        """Let the keeper look at a short lease now rather than when its longest wait is over."""
        if lease.policy.interval < 4 * LONGEST_WAIT:
            self._services[0].wake()

    def _see_loop(self) -> None:
        if self.leases is not None:
            self.leases.loop_seen = self.leases.clock.now()


def _then(_done: object, wait: float) -> float:
    return wait
