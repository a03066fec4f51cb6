"""Celery's ways to stop a worker, each made bounded and harmless.

A soft or cold shutdown is done inside of a signal handler, which interrupts whatever the main
thread does: the task itself in a solo worker, the event loop's core under gevent and eventlet,
a lock's holder anywhere. So nothing waits there but what another thread or process brings to an
end, and nothing at all in pools whose tasks could not go on meanwhile.
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
from celery_lease.worker.compat import pools

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.worker.consumer import Consumer

    from celery_lease.worker.leases import Leases
    from celery_lease.worker.shutdown import Shutdown

logger = logging.getLogger(__name__)

#: Pools whose tasks go on while the main thread stands in a signal handler.
WAITABLE = frozenset({"prefork", "thread"})
#: Seconds between two looks of a soft shutdown, and what is said when it begins.
LOOK = 0.05
SOFT = "Initiating Soft Shutdown, terminating in %s seconds at most"
#: What the handler cancels tasks by: 5.7's name, and 5.5's.
CANCEL = ("cancel_active_requests", "cancel_all_unacked_requests")

_restarts: list[int] = []  #: the SIGHUPs that asked for a restart


def leave() -> None:
    """End this process although threads of it run on; its children die with it.

    Nothing that is registered at exit is run, but for the restart that a SIGHUP asked for.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    if _restarts:
        worker_app._reload_current_worker()  # type: ignore[attr-defined]  # noqa: SLF001
    os._exit(EX_FAILURE)


def note_restarts() -> None:
    """Take note of Celery's restart by SIGHUP, which it leaves to the interpreter's exit."""
    sighup = getattr(signal, "SIGHUP", None)
    handler: Any = None if sighup is None else signal.getsignal(sighup)
    if getattr(handler, "__name__", "") != "restart_worker_sig_handler":
        return

    def restart_worker(signum: int, frame: Any) -> None:
        _restarts.append(signum)
        handler(signum, frame)

    signals["SIGHUP"] = restart_worker


def bound_end(consumer: Consumer, seconds: float, leave: Callable[[], None]) -> None:
    """Call *leave* if the consumer does not close its connections within *seconds*.

    A broker that is silent without having hung up keeps a warm shutdown for ever otherwise. No task
    runs any more by then.
    """
    shutdown = consumer.shutdown

    def bounded_shutdown() -> None:
        timer = threading.Timer(seconds, leave)
        timer.daemon = True
        timer.start()
        try:
            shutdown()
        finally:
            timer.cancel()

    consumer.shutdown = bounded_shutdown  # type: ignore[method-assign]


def tame_cold_shutdown(
    consumer: Consumer, leases: Leases, shutdown: Shutdown, begin: Callable[[], None]
) -> None:
    """Let soft and cold shutdowns begin with *begin*, end early, and wait where they may.

    Celery's handler waits for the soft shutdown, cancels, and stops the pool, in this order; each
    of the three is replaced for this worker alone.
    """
    _Cold(consumer, leases, shutdown, begin).install()


class _Cold:
    """What Celery's handler finds in the place of its own steps. In the main thread."""

    def __init__(
        self, consumer: Consumer, leases: Leases, shutdown: Shutdown, begin: Callable[[], None]
    ) -> None:
        self._leases, self._shutdown, self._begin = leases, shutdown, begin
        self._consumer: Any = consumer
        self._worker: Any = consumer.controller  # type: ignore[attr-defined]
        self._kind = pools.kind(consumer.pool)
        self._in_handler = False  # between the handler's first step and its last
        self._soft = False  # it began a soft shutdown that nobody waits for in it
        self._stop_due = False  # the pool is to be stopped outside of it

    def install(self) -> None:
        self._wait, self._worker.wait_for_soft_shutdown = (
            self._worker.wait_for_soft_shutdown,
            self.wait_for_soft_shutdown,
        )
        name = next(each for each in CANCEL if hasattr(self._consumer, each))
        self._cancel = getattr(self._consumer, name)
        setattr(self._consumer, name, self.cancel_requests)
        pool = self._consumer.pool
        if self._kind != "prefork":  # its own end needs the main thread, and ends by itself
            self._stop, pool.stop = pool.stop, self.stop_pool
            self._terminate, pool.terminate = pool.terminate, self.terminate_pool

    def wait_for_soft_shutdown(self) -> None:
        timeout = self._consumer.app.conf.worker_soft_shutdown_timeout
        plain = pools.runs_plain_tasks()
        self._begin()
        self._in_handler = True
        self._spare_the_line()
        if timeout <= 0:
            return
        idle = not len(self._leases) and not state.active_requests
        if self._kind in WAITABLE and (plain or idle):
            self._wait()  # Celery's: of plain tasks nothing is known here
        elif self._kind in WAITABLE:
            logger.warning(SOFT, timeout)
            self._wait_for_leases(timeout)
        elif not idle:
            logger.warning(SOFT, timeout)
            self._soft = True
            self._shutdown.hurry(timeout)

    def _spare_the_line(self) -> None:
        """Let the handler not cancel the consumer, as it does next: that asks the broker.

        On the connection that it may have interrupted in the middle of an answer; and while it
        waits for its own, messages come and are run inside of it (solo), or the hub of all
        greenlets would have to wait (eventlet). The door is closed, so nothing is lost by that.
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
        # What was interrupted may hold the lock, which the keeper needs: waiting lets go of it.
        rest = threading.Condition(self._leases.lock)
        while clock.now() < ends and len(self._leases):
            with rest:
                rest.wait(LOOK)

    def cancel_requests(self) -> None:
        if self._soft:
            return
        if self._kind != "thread":
            self._cancel()
            return
        # At the first plain task Celery's attempt ends, and would end the handler: no thread can be
        # cancelled. The leased ones shall know all the same.
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
