"""The bootsteps that put leases into a worker.

``LeaseSettings`` refuses to start a worker with wrong settings or a broker without a driver.
``LeaseConsumer`` starts again at each connection: it puts the channel under leases before anything
is consumed, and requeues reserved messages when consuming ends.
"""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE

import celery_lease.worker.control  # noqa: F401  (the worker knows its commands by this)
from celery_lease import brokers, settings
from celery_lease.board import Board
from celery_lease.brokers.connection import leasing
from celery_lease.celery_patches.abandoned_locks import free_abandoned_locks
from celery_lease.celery_patches.passing_refusals import reconnect_after
from celery_lease.celery_patches.unnoticed_deaths import notice_all_deaths
from celery_lease.core.errors import LeaseError
from celery_lease.worker import access, compat, crashes
from celery_lease.worker.policies import Policies
from celery_lease.worker.pools.prefork import forks_its_pool, inherits_memory
from celery_lease.worker.queues import check_names
from celery_lease.worker.runtime import Runtime
from celery_lease.worker.telemetry.about import introduction, log_uncovered

if TYPE_CHECKING:
    from celery.worker import WorkController
    from celery.worker.consumer import Consumer

logger = logging.getLogger(__name__)


class LeaseSettings(bootsteps.StartStopStep):
    """Checks settings, tasks and broker before the worker takes its first message."""

    def __init__(self, worker: WorkController, **options: Any) -> None:
        """Create the objects that task processes inherit, before the pool forks.

        These are the board, and the desk for stacks of crashes. Also freeze the objects loaded by
        now: the garbage collector would copy the memory that task processes share.
        """
        super().__init__(worker, **options)
        named = not inherits_memory(worker)
        self.board = worker.lease_board = Board.create(named=named)  # type: ignore[attr-defined]
        if forks_its_pool(worker):
            crashes.open_desk(looks=named)
            notice_all_deaths(worker.pool_cls)  # type: ignore[attr-defined]
            if not named:
                free_abandoned_locks(worker.pool_cls)  # type: ignore[attr-defined]
            gc.collect()
            gc.freeze()

    def start(self, worker: WorkController) -> None:
        """Check settings, task options and broker.

        Raises:
            WorkerShutdown: Something is wrong; the log lists all faults at once.
        """
        try:
            loaded = worker.lease_settings = settings.load(worker.app.conf)  # type: ignore[attr-defined]
            if loaded.enabled:
                access.check_platform()
                connection = worker.app.connection_for_read()  # never opened
                able = brokers.kind_of(connection).capabilities.keys
                policies = Policies(worker.app, loaded)
                policies.check("" if able else connection.transport.driver_type)
                log_uncovered(policies)
                worker.app.amqp.Connection = leasing(worker.app.amqp.Connection)
                check_names(worker.app, loaded, connection)
            else:
                self.board.close()
        except LeaseError as exc:
            self.board.close()
            logger.critical("worker not started: %s", exc)
            raise WorkerShutdown(EX_FAILURE) from None
        for warning in loaded.warnings:
            logger.warning("%s", warning)


class LeaseConsumer(bootsteps.StartStopStep):
    """Takes messages under leases, keeps the leases alive, and gives the messages back."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Consumer, **options: Any) -> None:
        super().__init__(consumer, **options)
        self.runtime: Runtime | None = None
        consumer.lease_runtime = None  # type: ignore[attr-defined]  # for remote control commands
        reconnect_after(consumer, lambda exc: _will_pass(consumer, exc))

    def start(self, consumer: Consumer) -> None:
        """Put the new channel under leases; at the first start, begin to keep them."""
        loaded = consumer.controller.lease_settings  # type: ignore[attr-defined]
        if not loaded.enabled:
            return
        channel = compat.channel_of(consumer)
        if self.runtime is None:
            access.check(consumer, channel, loaded)
            self.runtime = Runtime(consumer, channel, loaded)
            consumer.lease_runtime = self.runtime  # type: ignore[attr-defined]
            self.runtime.start()
        self.runtime.connect(channel)

    def info(self, consumer: Consumer) -> dict[str, Any]:  # type: ignore[override]  # as Celery reads it
        """Return the worker's version and identity for ``inspect stats``."""
        return {"lease": introduction(consumer)}

    def stop(self, consumer: Consumer) -> None:
        """Requeue reserved messages: this consumer will not start them.

        Called when the worker shuts down, and when its connection is lost: then Celery forgets its
        reserved messages. Leases of running tasks are kept alive until :meth:`shutdown`.
        """
        if self.runtime is not None:
            self.runtime.disconnect(closing=compat.is_closing(consumer))

    def shutdown(self, consumer: Consumer) -> None:
        """End the services: the pool is empty by now, or was ended at once.

        Celery calls this at the end of a warm and of a cold shutdown, for this worker alone; its
        ``worker_shutdown`` signal comes after warm ones only, from every worker of the process.
        """
        if self.runtime is None:
            consumer.controller.lease_board.close()  # type: ignore[attr-defined]
        else:
            self.runtime.close()


def _will_pass(consumer: Consumer, exc: Exception) -> bool:
    """Whether the broker's error, in a worker with leases, is a temporary one.

    Raises:
        WorkerShutdown: The broker can never be used in this state; the log says why.
    """
    loaded = consumer.controller.lease_settings  # type: ignore[attr-defined]
    if not loaded.enabled:
        return False
    connection = consumer.app.connection_for_read()  # never opened
    driver = brokers.driver_class(connection.transport.driver_type)
    if unfit := driver.unfit(exc):
        access.refuse(access.looked_up(consumer, loaded) or [unfit])
    return driver.will_pass(exc)
