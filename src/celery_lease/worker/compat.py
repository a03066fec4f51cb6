"""Every use of a Celery internal that the worker parts make, in one place.

Read in Celery 5.5.3 and 5.7.0; ``tests/unit/test_compat.py`` notices when one of them changes.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.platforms import EX_FAILURE
from celery.utils import log
from celery.worker import state

from celery_lease.core.clock import SystemClock
from celery_lease.worker.processes import is_gone
from celery_lease.worker.shutdown import Ender

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

    from celery_lease.worker.leases import Held

logger = logging.getLogger(__name__)

#: Seconds that a killed process is given to be gone.
DEATH = 1.0


def task_of(message: Any) -> tuple[str, str, Mapping[str, object]]:
    """Return name, id and lease options of a task message, of protocol 2 or 1; else blanks.

    A message that cannot be read is nobody's leased task: Celery deals with it as it always does.
    """
    headers = message.headers
    if not isinstance(headers, Mapping):
        return "", "", {}
    facts: Any = headers
    if "task" not in headers:
        try:
            facts = message.payload
            facts["task"], facts["id"]
        except Exception:  # noqa: BLE001  (decoding a foreign body may raise anything)
            return "", "", {}
    options = headers.get("lease")
    return facts["task"], facts.get("id", ""), options if isinstance(options, Mapping) else {}


def mark_ready(request: Any) -> None:
    """Take a request out of the worker's lists of reserved and active ones."""
    state.task_ready(request)


def stop_worker() -> None:
    """Make the worker's main loop shut down warmly and exit with a failure."""
    state.should_stop = EX_FAILURE  # type: ignore[assignment]


def is_solo(consumer: Consumer) -> bool:
    """Whether tasks run inside the worker's main loop, which stands still meanwhile."""
    return type(consumer.pool).__module__ == "celery.concurrency.solo"


def stop_consuming(consumer: Consumer) -> None:
    """Ask the broker for no more tasks; Celery does so again a moment later, without effect."""
    consumer.task_consumer.cancel()  # type: ignore[attr-defined]


def channel_of(consumer: Consumer) -> Any:
    """Return the channel on which the worker consumes tasks."""
    return consumer.task_consumer.channel  # type: ignore[attr-defined]


def is_closing(consumer: Consumer) -> bool:
    """Whether the worker is stopping, rather than reconnecting."""
    return bool(consumer.blueprint.state != bootsteps.RUN)  # type: ignore[attr-defined]


def is_stopping() -> bool:
    """Whether this process was told to stop, though its main loop may not know yet."""
    return any(
        code is not None and code is not False
        for code in (state.should_stop, state.should_terminate)
    )


def every(consumer: Consumer, seconds: float, call: Any) -> Callable[[], None]:
    """Call *call* now, and again while the main loop turns; return what ends that."""
    call()
    entry = consumer.timer.call_repeatedly(seconds, call)
    # Not by the entry itself: green timers have to catch what that raises in them.
    return lambda: consumer.timer.cancel(entry)


def in_signal_handler() -> bool:
    """Whether one of Celery's own signal handlers runs: a cold shutdown works inside of one."""
    return bool(log._in_sighandler)  # type: ignore[attr-defined]  # noqa: SLF001


def ender(consumer: Consumer) -> Ender:
    """Return what this worker's pool can do about a task that does not end by itself."""

    def end(held: Held, release: Callable[[], None]) -> bool:
        return _end_task(consumer.pool, held.pid, release)

    def leave() -> None:
        if not any(getattr(each, "lease", None) is None for each in state.active_requests):
            _leave()

    def failed() -> None:
        consumer.controller.exitcode = EX_FAILURE  # type: ignore[attr-defined]

    return Ender(end, leave, failed)


def _end_task(pool: Any, pid: int | None, release: Callable[[], None]) -> bool:
    """End the task that a pool runs under *pid*: a process, or a greenlet's number.

    A process is gone before its message is released. A killed greenlet's task counts as a success
    in Celery's green pools, which would acknowledge: its message is released before.
    """
    kind = type(pool).__module__.rpartition(".")[2]
    gone = False
    if kind == "prefork" and pid is not None:
        pool.terminate_job(pid, signal.SIGKILL)
        gone = is_gone(pid, DEATH)
    release()
    if kind in {"gevent", "eventlet"} and pid is not None:
        pool.terminate_job(pid)
        gone = True
    return gone


def _leave() -> None:
    """End this process although threads of it run on; its children die with it."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(EX_FAILURE)


def shorten_soft_shutdown(
    consumer: Consumer, begin: Callable[[], None], is_idle: Callable[[], bool]
) -> None:
    """Let a worker's soft shutdown begin with *begin*, and end when nothing runs any more.

    Celery sleeps for its whole length, inside the signal handler, where it hears of no task's end.
    It still does so for plain tasks, of which nothing is known there.
    """
    worker = consumer.controller  # type: ignore[attr-defined]
    celerys: Callable[[], None] = worker.wait_for_soft_shutdown

    def wait_for_soft_shutdown() -> None:
        timeout = consumer.app.conf.worker_soft_shutdown_timeout
        plain = any(getattr(each, "lease", None) is None for each in state.active_requests)
        begin()
        if timeout <= 0 or plain or (is_idle() and not state.active_requests):
            celerys()
            return
        logger.warning("Initiating Soft Shutdown, terminating in %s seconds at most", timeout)
        clock, rest = SystemClock(), threading.Event()
        ends = clock.now() + timeout
        while clock.now() < ends and not is_idle():
            rest.wait(0.05)

    worker.wait_for_soft_shutdown = wait_for_soft_shutdown
