"""The runtime of a worker's leases: one object that builds the parts and owns their threads.

It is made at the first connection and lives as long as the worker; the bootsteps call it.

The main thread calls all methods, except callbacks of the parts: ``_hurry_tasks`` (main thread),
``_clear_soon`` (main thread or remote control), ``_keep`` and ``_reap`` (their own threads).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.signals import worker_shutting_down

from celery_lease import brokers
from celery_lease.brokers.identity import identity
from celery_lease.celery_patches.forgotten_jobs import keep_running_jobs
from celery_lease.celery_patches.malformed_messages import outlive
from celery_lease.celery_patches.partial_messages import read_to_the_end
from celery_lease.celery_patches.semaphore_recursion import flatten
from celery_lease.celery_patches.silent_broker import bound_end
from celery_lease.celery_patches.unheard_starts import keep_sent_jobs
from celery_lease.celery_patches.unwatched_processes import watch_again
from celery_lease.core.clock import SystemClock
from celery_lease.worker import compat, parts, pools, shutdown_patches, telemetry
from celery_lease.worker.backup_control import REST, BackupControl
from celery_lease.worker.drain import Drain
from celery_lease.worker.keeper import SLOW_LOOP, Keeper
from celery_lease.worker.keys import KeyFinder
from celery_lease.worker.policies import Policies
from celery_lease.worker.reaper import Reaper
from celery_lease.worker.registry import LeaseRegistry
from celery_lease.worker.service import Service
from celery_lease.worker.shutdown import SILENCE, Shutdown
from celery_lease.worker.telemetry import Telemetry, exports
from celery_lease.worker.telemetry.about import log_start
from celery_lease.worker.telemetry.progress import Publisher
from celery_lease.worker.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery.worker.consumer import Consumer

    from celery_lease.core.lease import Lease
    from celery_lease.health_server import HealthServer
    from celery_lease.settings import Settings

logger = logging.getLogger(__name__)

#: Longest time between two signs of life of the main loop, in seconds, and its share of the
#: shortest lease: they keep the leases of reserved messages alive.
LOOP_INTERVAL, LOOP_SHARE, SHORTEST_LOOP_INTERVAL = 1.0, 0.2, 0.05
#: Events in one message, of some 300 bytes each.
EVENTS_AT_ONCE = 100
#: Longest wait for a service's end, in seconds; its thread is a daemon and delays no exit.
STOP_TIMEOUT = 2.0
#: Seconds that a stopping worker goes on settling messages at a broker that does not answer.
UNSENT = 5.0
#: What a thread's death leads to: without its keeper a worker must not take more messages.
END, LET_GO = compat.stop_worker, lambda: None


class Runtime:
    """The runtime of one worker."""

    def __init__(self, consumer: Consumer, channel: Any, loaded: Settings) -> None:
        """Build all parts; nothing runs before :meth:`start`."""
        self._consumer, self._loaded = consumer, loaded
        self._channel = channel  # the main thread writes, the keeper reads
        self._policies = policies = Policies(consumer.app, loaded)
        extensions = policies.extensions()
        self._loop_interval = min([LOOP_INTERVAL, *(LOOP_SHARE * each for each in extensions)])
        self._reaper_interval = loaded.reaper_interval_for(extensions)
        self._looks_at = 0.0  # when the keeper's next pass is due; it writes, the main thread reads
        self._end_ticks: Callable[[], None] = lambda: None
        self._ticks_slowly = False  # with the one above the main loop's
        self._turns_soon = False  # _turn() is scheduled; a timer sets it, the main loop resets it
        self.pool = pools.adapter(consumer, shutdown_patches.leave)
        self.leases = leases = self._make_leases(channel)
        self.shutdown = Shutdown(leases, self.pool)
        self.drain = Drain(leases, self._clear_soon)
        self.watchdog = Watchdog(leases, self.pool)
        self.keeper = Keeper(leases, self.pool.lives)
        self.reaper = Reaper(leases.driver)
        self._backup_control = BackupControl(consumer, leases)
        self._publisher = self._make_publisher(loaded.publish_progress)
        self._telemetry = Telemetry(consumer.hostname, leases, self.reaper.stats, self.watchdog)
        self._health: HealthServer | None = None
        self._traces: exports.Exporter | None = None
        self._keeping = Service("celery-lease-keeper", self._keep, retry=1.0, on_death=END)
        self._answering = Service(
            "celery-lease-backup-control",
            self._backup_control.run_once,
            retry=REST,
            on_death=LET_GO,
        )
        self._watching = Service(
            "celery-lease-watchdog", self.watchdog.run_once, retry=1.0, on_death=END
        )
        self._services = [self._keeping, *self._others(), self._answering]

    def _make_leases(self, channel: Any) -> LeaseRegistry:
        consumer, driver = self._consumer, brokers.driver(channel)
        worker_id = identity(consumer.hostname)
        driver.serve(worker_id)
        dead_letters = driver.capabilities.dead_letters
        return LeaseRegistry(
            driver,
            consumer.controller.lease_board,  # type: ignore[attr-defined]
            SystemClock(),
            worker_id,
            self._policies,
            is_plain=self._policies.never_leases,
            accept=compat.accepted(consumer.app),
            dead_letter_queue_of=self._loaded.dead_letter_queue_of if dead_letters else None,
            loop_is_task=self.pool.in_loop,
            publishes=self._loaded.publish_progress is not None,
            withdraw_plain=lambda message: compat.withdraw_plain(consumer, message),
            key_of=KeyFinder(consumer.app, "" if driver.capabilities.keys else self._transport()),
            on_claimed=self._claimed,
            on_end=self._end_progress,
            hurry=self._hurry_tasks,
        )

    def _transport(self) -> str:
        connection: Any = self._consumer.connection
        return str(connection.transport.driver_type)

    def _make_publisher(self, interval: float | None) -> Publisher | None:
        """Return a publisher of the tasks' progress; None: ``lease_publish_progress`` is off."""
        if interval is None:
            return None
        return Publisher(self.leases, interval, compat.progress_store(self._consumer.app))

    def _others(self) -> Iterator[Service]:
        retry = self._reaper_interval
        yield Service("celery-lease-reaper", self._reap, retry=retry, on_death=END)
        yield self._watching
        if self._publisher is not None:
            publish = self._publisher.run_once
            yield Service("celery-lease-progress", publish, retry=REST, on_death=LET_GO)

    def start(self) -> None:
        """Install the patches of Celery, and start the threads."""
        consumer = self._consumer
        bound_end(consumer, SILENCE, self.pool.leave)
        shutdown_patches.note_restarts()
        outlive(consumer, parts.dead_letter_malformed)
        flatten(consumer.controller)  # type: ignore[attr-defined]
        shutdown_patches.tame_cold_shutdown(
            consumer, self.leases, self.shutdown, self.ask_to_stop, self.pool
        )
        keep_running_jobs(consumer)
        keep_sent_jobs(consumer)
        watch_again(consumer)
        read_to_the_end(consumer)
        worker_shutting_down.connect(self.ask_to_stop, sender=consumer.hostname)
        log_start(consumer, self._policies, self._loaded)
        self._health = parts.health_server(self._telemetry, self._loaded)
        telemetry.begin(self._telemetry)
        exports.begin(self._telemetry)
        connection: Any = consumer.connection
        self._traces = exports.traces(self._telemetry, connection.transport.driver_type)
        if self._traces is not None:
            export = self._traces.run_once
            self._services.append(
                Service("celery-lease-traces", export, retry=REST, on_death=LET_GO)
            )
        for service in self._services:
            service.start()

    def connect(self, channel: Any) -> None:
        """Put a new channel under leases."""
        self._channel = channel
        self.leases.driver.lease_messages(channel, self.leases, self.leases.clock)
        self._tick()

    def disconnect(self, *, closing: bool) -> None:
        """Requeue reserved messages; *closing*: the worker stops."""
        self._end_ticks()
        if not closing:
            self.leases.requeue_unstarted(flushed=True)
            return
        self.ask_to_stop()
        # In this order: requeued messages may be delivered to this consumer again.
        compat.stop_consuming(self._consumer)
        self.leases.requeue_unstarted()
        self.leases.driver.end_receiving(compat.channel_of(self._consumer))

    def close(self) -> None:
        """End the threads, and settle what the broker has not answered yet."""
        if self._health is not None:
            self._health.close()
        for service in self._services:
            service.stop(STOP_TIMEOUT)
        self._backup_control.close()
        self.shutdown.report()
        telemetry.end(self._telemetry)
        self.leases.outbox.within(UNSENT)
        self._send_news()
        if self._traces is not None:
            self._traces.run_once()
        self.leases.close()

    def ask_to_stop(self, **_: Any) -> None:
        """Begin to end the leases. Also called inside a signal handler: no lock, no I/O."""
        self.shutdown.ask()
        self._keeping.wake()
        self._answering.wake()

    # Called by the parts.

    def _keep(self) -> float:
        if compat.is_stopping():
            self.shutdown.ask()
        wait = self.keeper.run_once().wait
        self.leases.driver.tend(self._channel)
        wait = min(wait, self.shutdown.run_once()) if self.leases.intake.stopping else wait
        self._looks_at = self.leases.clock.now() + wait
        return wait

    def _reap(self) -> float:
        try:
            for each in self.reaper.run_once():
                self.leases.stats.recovered(each)
        except OSError as exc:
            logger.warning("no sweep for expired leases: %s", exc)
        return self._reaper_interval

    def _hurry_tasks(self) -> None:
        self.shutdown.hurry()

    def _end_progress(self, tag: str) -> None:
        if self._publisher is not None:
            self._publisher.close(tag)

    def _claimed(self, lease: Lease) -> None:
        """Adapt the threads and the main loop to a first lease, and to one shorter than others."""
        if self.leases.resting:
            self.leases.resting = False
            self._wake()
        if self._ticks_slowly:
            self._consumer.timer.call_after(0.0, self._tick)
        self._hurry(lease)
        interval = max(LOOP_SHARE * lease.policy.extension, SHORTEST_LOOP_INTERVAL)
        if interval < self._loop_interval:
            self._loop_interval = interval
            # By the timer: a full pool of greenlets delays functions of call_soon in the main loop.
            self._consumer.timer.call_after(0.0, self._tick)

    def _hurry(self, lease: Lease) -> None:
        """Wake the keeper if its next pass would be too late for a short lease."""
        if self._looks_at > lease.claim.asked_at + lease.policy.interval / 4:
            self._keeping.wake()

    def _wake(self) -> None:
        """End the threads' rest."""
        for service in (self._keeping, self._watching, self._answering):
            service.wake()

    def _clear_soon(self) -> None:
        """Schedule :meth:`_clear` in the consuming thread."""
        self._consumer.call_soon(self._clear)

    def _clear(self) -> None:
        leases = self.leases
        self._turn()
        if not leases.intake.is_open:
            leases.driver.end_receiving(compat.channel_of(self._consumer))
            leases.requeue_unstarted()
            compat.forget_requests(lambda lease: not lease.leases.knows(lease.tag))

    # Called by the main loop.

    def _tick(self, *, slowly: bool = False) -> None:
        """Start the main loop's signs of life, at the current interval or at that of a rest."""
        self._end_ticks()
        self._ticks_slowly = slowly
        interval = SLOW_LOOP if slowly else self._loop_interval
        self._end_ticks = compat.every(self._consumer, interval, self._see_loop)

    def _see_loop(self) -> None:
        leases = self.leases
        leases.loop_seen = leases.clock.now()
        if leases.resting and leases.outbox.left:  # messages of a claim that failed
            self._keeping.wake()
        if leases.driver.is_tended:
            compat.call_in_loop(self._consumer, leases.driver.catch_up, self._channel)
        if leases.intake.draining:
            self._clear_soon()  # also messages that arrived since
        else:
            self._turn_soon()
        self._send_news()
        if leases.resting is not self._ticks_slowly:
            self._consumer.timer.call_after(0.0, partial(self._tick, slowly=leases.resting))

    def _turn_soon(self) -> None:
        """Start or stop deliveries in the consuming thread.

        Without an event loop a timer has a thread or a greenlet of its own. One that waits for the
        broker's answer reads the connection in place of the consuming one, which hangs.
        """
        if compat.has_loop(self._consumer):
            self._turn()
        elif not self._turns_soon:
            self._turns_soon = True
            self._consumer.call_soon(self._turn)

    def _turn(self) -> None:
        self._turns_soon = False
        self.leases.driver.turn(compat.channel_of(self._consumer))

    def _send_news(self) -> None:
        """Send the changes of leases since the last call as Celery events, if they are wanted."""
        stats = self.leases.stats
        stats.listening = compat.wants_events(self._consumer)
        while stats.news:
            batch = [stats.news.popleft() for _ in range(min(len(stats.news), EVENTS_AT_ONCE))]
            compat.send_events(self._consumer, batch)
