"""Makes Celery's ways to stop a worker bounded and harmless for leases.

A soft or cold shutdown happens inside of a signal handler, which interrupts the main thread
anywhere: in the task itself in a solo worker, in the event loop's core under gevent and eventlet,
while it holds a lock. So the handler waits only for things that another thread or process brings to
an end, and for nothing at all in pools whose tasks could not go on meanwhile.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery.apps import worker as worker_app
from celery.platforms import EX_FAILURE, signals
from celery.worker import state

from celery_lease.worker import compat

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.worker.consumer import Consumer

    from celery_lease.worker.pools import Pool
    from celery_lease.worker.registry import LeaseRegistry
    from celery_lease.worker.shutdown import Shutdown

logger = logging.getLogger(__name__)

#: Seconds between two looks of a soft shutdown, and the log's text when it begins.
LOOK = 0.05
SOFT = "Initiating Soft Shutdown, terminating in %s seconds at most"
#: The consumer's method that cancels tasks in the handler: 5.7's name, and 5.5's.
CANCEL = ("cancel_active_requests", "cancel_all_unacked_requests")

_restarts: list[int] = []  #: the SIGHUPs that asked for a restart


def leave() -> None:
    """End this process although threads of it still run; its children die with it.

    Exit handlers are not called, except for the restart that a SIGHUP asked for.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    if _restarts:
        worker_app._reload_current_worker()  # type: ignore[attr-defined]  # noqa: SLF001
    os._exit(EX_FAILURE)


def note_restarts() -> None:
    """Record a restart by SIGHUP, which Celery leaves to the interpreter's exit."""
    sighup = getattr(signal, "SIGHUP", None)
    handler: Any = None if sighup is None else signal.getsignal(sighup)
    if getattr(handler, "__name__", "") != "restart_worker_sig_handler":
        return

    def restart_worker(signum: int, frame: Any) -> None:
        _restarts.append(signum)
        handler(signum, frame)

    signals["SIGHUP"] = restart_worker


def tame_cold_shutdown(
    consumer: Consumer,
    leases: LeaseRegistry,
    shutdown: Shutdown,
    begin: Callable[[], None],
    pool: Pool,
) -> None:
    """Make soft and cold shutdowns call *begin* first, end early, and wait only where it is safe.

    Celery's handler waits for the soft shutdown, cancels, and stops the pool, in this order; all
    three are replaced for this worker alone.
    """
    _Cold(consumer, leases, shutdown, begin, pool).install()


class _Cold:
    """Replaces the steps of Celery's shutdown handler. In the main thread."""

    def __init__(
        self,
        consumer: Consumer,
        leases: LeaseRegistry,
        shutdown: Shutdown,
        begin: Callable[[], None],
        pool: Pool,
    ) -> None:
        self._leases, self._shutdown, self._begin = leases, shutdown, begin
        self._consumer: Any = consumer
        self._worker: Any = consumer.controller  # type: ignore[attr-defined]
        self._pool = pool
        self._in_handler = False  # between the handler's first step and its last
        self._soft = False  # it began a soft shutdown for which the handler does not wait
        self._stop_due = False  # the pool is to be stopped outside of the handler

    def install(self) -> None:
        self._wait, self._worker.wait_for_soft_shutdown = (
            self._worker.wait_for_soft_shutdown,
            self.wait_for_soft_shutdown,
        )
        name = next(each for each in CANCEL if hasattr(self._consumer, each))
        self._cancel = getattr(self._consumer, name)
        setattr(self._consumer, name, self.cancel_requests)
        pool = self._consumer.pool
        if not self._pool.ends_itself:  # its own end needs the main thread, and ends by itself
            self._stop, pool.stop = pool.stop, self.stop_pool
            self._terminate, pool.terminate = pool.terminate, self.terminate_pool

    def wait_for_soft_shutdown(self) -> None:
        timeout = self._consumer.app.conf.worker_soft_shutdown_timeout
        plain = self._pool.runs_plain_tasks()
        self._begin()
        self._in_handler = True
        self._spare_the_line()
        if timeout <= 0:
            return
        idle = not len(self._leases) and not state.active_requests
        if self._pool.goes_on and (plain or idle):
            self._wait()  # Celery's: there are plain tasks, of which the registry knows nothing
        elif self._pool.goes_on:
            logger.warning(SOFT, timeout)
            self._wait_for_leases(timeout)
        elif not idle:
            logger.warning(SOFT, timeout)
            self._soft = True
            self._shutdown.hurry(timeout)

    def _spare_the_line(self) -> None:
        """Make the handler skip its next step: to cancel the consumer by a call to the broker.

        The handler may have interrupted that connection in the middle of an answer; and while it
        waits for its own answer, messages arrive and run inside of it (solo), or the hub of all
        greenlets would have to wait (eventlet). No message is taken any more, so nothing is lost.
        """
        consumer = self._consumer.task_consumer
        if consumer is None:
            return
        cancel = consumer.cancel

        def cancel_outside() -> None:
            del consumer.cancel
            if not compat.in_signal_handler():
                cancel()

        consumer.cancel = cancel_outside

    def _wait_for_leases(self, timeout: float) -> None:
        clock = self._leases.clock
        ends = clock.now() + timeout
        # The interrupted code may hold the lock, which the keeper needs: wait() releases it.
        rest = threading.Condition(self._leases.lock)
        while clock.now() < ends and len(self._leases):
            with rest:
                rest.wait(LOOK)

    def cancel_requests(self) -> None:
        if self._soft:
            return
        if self._pool.cancels:
            self._cancel()
            return
        # At the first plain task Celery's attempt raises, which would end the handler: a thread
        # cannot be cancelled. The leased tasks are still asked to end.
        self._leases.hurry()
        with suppress(NotImplementedError):
            self._cancel()

    def stop_pool(self) -> None:
        if self._in_handler and compat.in_signal_handler():
            self._in_handler = self._soft = False
            self._stop_due = True
        else:
            self._stop()

    def terminate_pool(self) -> None:
        if self._stop_due:
            self._stop_due = False
            self._stop()
        self._terminate()
