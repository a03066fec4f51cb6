"""The bootsteps that put leases into a worker.

``LeaseSettings`` refuses to start a worker with wrong settings or a broker without a driver.
``LeaseConsumer`` runs anew at each connection: it puts the channel under leases before anything
is consumed, and hands back what has not started when consuming ends.
"""

from __future__ import annotations

import gc
import logging
import os
import uuid
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.signals import worker_shutting_down

import celery_lease.worker.control  # noqa: F401  (the worker knows its commands by this)
from celery_lease import brokers, settings
from celery_lease.core.board import Board
from celery_lease.core.clock import SystemClock
from celery_lease.core.errors import LeaseError
from celery_lease.worker import compat, exports, vitals
from celery_lease.worker.about import versions
from celery_lease.worker.compat import foreign, places, pools, reconnects, stops
from celery_lease.worker.drain import Drain
from celery_lease.worker.health import HealthServer, health_of
from celery_lease.worker.keeper import LONGEST_WAIT, Keeper
from celery_lease.worker.leases import Leases
from celery_lease.worker.policies import Policies
from celery_lease.worker.progress import Publisher
from celery_lease.worker.reaper import Reaper
from celery_lease.worker.service import Service
from celery_lease.worker.shutdown import SILENCE, Shutdown
from celery_lease.worker.stand_in import REST, StandIn
from celery_lease.worker.vitals import Vitals
from celery_lease.worker.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.worker import WorkController
    from celery.worker.consumer import Consumer

    from celery_lease.core.lease import Lease

logger = logging.getLogger(__name__)

#: Longest time between two signs of life of the main loop, in seconds, and the share of the
#: shortest lease that it may be: what waits is kept alive by them.
LOOP_INTERVAL, LOOP_SHARE = 1.0, 0.2
#: Events in one message, of some 300 bytes each.
EVENTS_AT_ONCE = 100
#: Longest wait for a service's end, in seconds; its thread is a daemon and holds nothing up.
STOP_TIMEOUT = 2.0
#: Seconds that a stopping worker goes on telling a broker that does not answer what has ended.
UNSENT = 5.0


class LeaseSettings(bootsteps.StartStopStep):
    """Checks everything that can be wrong before the worker takes its first message."""

    def __init__(self, worker: WorkController, **options: Any) -> None:
        """Keep the collector from what is loaded by now, before the pool forks.

        It would write into every object and so copy the memory that task processes share: more, by
        an order of magnitude, than the worker parts need (see ``gc.freeze`` in Python's manual).
        """
        super().__init__(worker, **options)
        if pools.forks_its_pool(worker):
            gc.collect()
            gc.freeze()

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
        self.reaper: Reaper | None = None
        self.watchdog: Watchdog | None = None
        self._services: list[Service] = []
        self._urgent: list[Service] = []  #: what has to know at once that the worker stops
        self._loop_interval = LOOP_INTERVAL
        self._looks_at = 0.0  # when the keeper does so next; it writes, the main thread reads
        self._end_ticks: Callable[[], None] = lambda: None
        self._shutdown: Shutdown | None = None
        self._drain: Drain | None = None
        self._stand_in: StandIn | None = None
        self._publisher: Publisher | None = None
        self.health: HealthServer | None = None
        self._vitals: Vitals | None = None
        consumer.leases = None  # type: ignore[attr-defined]
        consumer.lease_drain = None  # type: ignore[attr-defined]  # for remote control commands
        consumer.lease_silent = ()  # type: ignore[attr-defined]  # the same
        reconnects.reconnect_after(consumer, lambda exc: _will_pass(consumer, exc))

    def start(self, consumer: Consumer) -> None:
        """Put the new channel under leases; at the first start, begin to keep them."""
        loaded = settings.load(consumer.app.conf)
        if not loaded.enabled:
            return
        channel = compat.channel_of(consumer)
        if self.leases is None:
            policies = Policies(consumer.app, loaded)
            extensions = policies.extensions()
            self.leases = _make_leases(consumer, channel, policies)
            consumer.leases = self.leases  # type: ignore[attr-defined]
            if self.leases.driver.capabilities.buries:
                self.leases.dead_letter_queue_of = loaded.dead_letter_queue_of
            ender = pools.ender(consumer, stops.leave)
            self._shutdown = Shutdown(self.leases, ender)
            self.leases.hurry = self._shutdown.hurry
            stops.bound_end(consumer, SILENCE, ender.leave)
            stops.note_restarts()
            foreign.outlive(consumer)
            places.flatten(consumer.controller)  # type: ignore[attr-defined]
            stops.tame_cold_shutdown(consumer, self.leases, self._shutdown, self._ask_to_stop)
            reconnects.keep_running_jobs(consumer)
            reconnects.read_to_the_end(consumer)
            worker_shutting_down.connect(self._ask_to_stop, sender=consumer.hostname)
            self._drain = Drain(self.leases, self._shutdown, lambda: self._clear_soon(consumer))
            consumer.lease_drain = self._drain  # type: ignore[attr-defined]
            self._loop_interval = min([LOOP_INTERVAL, *(LOOP_SHARE * each for each in extensions)])
            self.watchdog = Watchdog(self.leases, pools.watched(consumer, ender))
            self._stand_in = StandIn(consumer, self.leases, self._shutdown)
            self._publish(consumer, loaded.publish_progress)
            reaper = Reaper(self.leases.driver)
            self._vitals = Vitals(consumer.hostname, self.leases, reaper.counters, self.watchdog)
            self.health = _health_server(self._vitals, loaded)
            vitals.begin(self._vitals)
            exports.begin(self._vitals)
            consumer.lease_silent = self._start_services(  # type: ignore[attr-defined]
                self.leases, self._shutdown, reaper, loaded.reaper_interval_for(extensions)
            ).silent
        brokers.lease_messages(channel, self.leases.driver, self.leases, self.leases.clock)
        self._end_ticks()
        self._end_ticks = compat.every(
            consumer, self._loop_interval, lambda: self._see_loop(consumer)
        )

    def info(self, _consumer: Consumer) -> dict[str, Any]:  # type: ignore[override]  # as Celery reads it
        """Return what ``inspect stats`` adds: who asks it can tell this worker from a plain one."""
        return {"lease": {"version": versions()["celery-lease"]}}

    def stop(self, consumer: Consumer) -> None:
        """Hand back what does not run: this consumer will not start it.

        Called when the worker shuts down, and when its connection is lost: then Celery forgets
        what it had reserved. What runs is kept alive until :meth:`shutdown`.
        """
        if self.leases is None:
            return
        self._end_ticks()
        if compat.is_closing(consumer):
            self._close(consumer, self.leases)
        else:
            self.leases.hand_back_unstarted(flushed=True)

    def shutdown(self, consumer: Consumer) -> None:
        """End the services: the pool is empty by now, or was told to end at once.

        Celery calls this at the end of a warm and of a cold shutdown, for this worker alone; its
        ``worker_shutdown`` signal comes after warm ones only, from every worker of the process.
        """
        if self.health is not None:
            self.health.close()
        for service in self._services:
            service.stop(STOP_TIMEOUT)
        if self._stand_in is not None:
            self._stand_in.close()
        if self._shutdown is not None:
            self._shutdown.report()
        if self._vitals is not None:
            vitals.end(self._vitals)
        if self.leases is not None:
            self.leases.settling.within(UNSENT)
            self._send_news(consumer, self.leases)
            self.leases.close()

    def _close(self, consumer: Consumer, leases: Leases) -> None:
        self._ask_to_stop()
        # In this order: what goes back may be given out to this consumer once more.
        compat.stop_consuming(consumer)
        leases.hand_back_unstarted()
        brokers.end_receiving(compat.channel_of(consumer))

    def _ask_to_stop(self, **_: Any) -> None:
        """Begin to let go of leases. Also called inside a signal handler: no lock, no I/O."""
        if self._shutdown is not None:
            self._shutdown.ask()
            for each in self._urgent:  # there is none yet while the worker starts
                each.wake()

    def _clear_soon(self, consumer: Consumer) -> None:
        """Have the consuming thread clear what a drain leaves between broker and tasks."""

        def clear() -> None:
            leases, channel = self.leases, compat.channel_of(consumer)
            brokers.turn(channel)
            if leases is not None and leases.door_closed:
                brokers.end_receiving(channel)
                leases.hand_back_unstarted()
                compat.forget_requests(lambda lease: not lease.leases.knows(lease.tag))

        consumer.call_soon(clear)

    def _start_services(
        self, leases: Leases, shutdown: Shutdown, reaper: Reaper, reaper_interval: float
    ) -> Keeper:
        keeper = Keeper(leases)
        self.reaper = reaper

        def keep() -> float:
            if compat.is_stopping():
                shutdown.ask()
            wait = keeper.run_once().wait
            wait = min(wait, shutdown.run_once()) if shutdown.asked else wait
            self._looks_at = leases.clock.now() + wait
            return wait

        def reap() -> float:
            try:
                for each in reaper.run_once():
                    leases.tally.recovered(each)
            except OSError as exc:
                logger.warning("no sweep for expired leases: %s", exc)
            return reaper_interval

        def watch() -> float:
            return LONGEST_WAIT if self.watchdog is None else self.watchdog.run_once()

        def stand_in() -> float:
            return LONGEST_WAIT if self._stand_in is None else self._stand_in.run_once()

        self._services = [
            Service("celery-lease-keeper", keep, retry=1.0, on_death=compat.stop_worker),
            Service(
                "celery-lease-reaper", reap, retry=reaper_interval, on_death=compat.stop_worker
            ),
            Service("celery-lease-watchdog", watch, retry=1.0, on_death=compat.stop_worker),
            Service("celery-lease-stand-in", stand_in, retry=REST, on_death=lambda: None),
        ]
        if publisher := self._publisher:
            self._services.insert(
                -1,
                Service(
                    "celery-lease-progress", publisher.run_once, retry=REST, on_death=lambda: None
                ),
            )
        for service in self._services:
            service.start()
        self._urgent = [self._services[0], self._services[-1]]
        leases.on_claimed = self._hurry
        return keeper

    def _publish(self, consumer: Consumer, interval: float | None) -> None:
        """Publish what tasks say of their progress, if that is asked for."""
        if interval is not None and self.leases is not None:
            self._publisher = Publisher(self.leases, interval, compat.progress_store(consumer.app))
            self.leases.publishes, self.leases.on_end = True, self._publisher.close

    def _hurry(self, lease: Lease) -> None:
        """Let the keeper look at a short lease now if it would only do so too late.

        Not at each: it looks at all leases, and one wait as short as this lease's is enough.
        """
        if self._looks_at > lease.claim.asked_at + lease.policy.interval / 4:
            self._services[0].wake()

    def _see_loop(self, consumer: Consumer) -> None:
        if self.leases is not None:
            self.leases.loop_seen = self.leases.clock.now()
            if self._drain is not None and self._drain.draining:
                self._clear_soon(consumer)  # also what came since
            else:
                brokers.turn(compat.channel_of(consumer))
            self._send_news(consumer, self.leases)

    def _send_news(self, consumer: Consumer, leases: Leases) -> None:
        """Send what happened to leases since the last time, as Celery events; if wanted."""
        leases.tally.listening = compat.wants_events(consumer)
        news = leases.tally.news
        while news:
            batch = [news.popleft() for _ in range(min(len(news), EVENTS_AT_ONCE))]
            compat.send_events(consumer, batch)


def _health_server(seen: Vitals, loaded: settings.Settings) -> HealthServer | None:
    """Listen for probes, if there is a port for them.

    Raises:
        WorkerShutdown: The address cannot be listened on; the log says why.
    """
    if loaded.health_port is None:
        return None
    try:
        return HealthServer(
            loaded.health_host,
            loaded.health_port,
            lambda: health_of(seen.leases, seen.watchdog.stuck),
            exports.metrics_page,
        )
    except OSError as exc:
        logger.critical(
            "worker not started: no health server on %s port %d: %s; choose another "
            "lease_health_host or lease_health_port",
            loaded.health_host,
            loaded.health_port,
            exc,
        )
        raise WorkerShutdown(EX_FAILURE) from None


def _will_pass(consumer: Consumer, exc: Exception) -> bool:
    """Whether the broker refuses for now only, in a worker with leases."""
    if not settings.load(consumer.app.conf).enabled:
        return False
    return brokers.will_pass(consumer.app.connection_for_read(), exc)  # which is never opened


def _make_leases(consumer: Consumer, channel: Any, policies: Policies) -> Leases:
    worker_id = f"{consumer.hostname}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    leases = Leases(brokers.driver(channel), Board.create(), SystemClock(), worker_id, policies)
    leases.loop_is_task = pools.is_solo(consumer)
    return leases
