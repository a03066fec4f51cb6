"""What Celery does when its event loop or a connection ends, made harmless to what runs.

As read in 5.5.3, 5.6.2 and 5.7.0.
"""

from __future__ import annotations

import logging
import os
import threading
from inspect import isgenerator
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from celery_lease.worker.compat import pools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery.worker.consumer import Consumer

logger = logging.getLogger(__name__)

#: Seconds that a task process has to write on in a message of which a part was read.
PATIENCE = 2.0
#: Seconds before the next connection to a broker that refuses all work.
REFUSED = 1.0


def reconnect_after(consumer: Consumer, will_pass: Callable[[Exception], bool]) -> None:
    """Let the consumer connect anew after errors that pass: for Celery they end the worker.

    At the worker's start, where Celery's ``broker_connection_retry_on_startup`` decides whether it
    waits for a broker, that decides here too.
    """
    blueprint: Any = consumer.blueprint
    start = blueprint.start

    def start_again(parent: Any) -> None:
        try:
            start(parent)
        except Exception as exc:
            if not will_pass(exc):
                raise
            threading.Event().wait(REFUSED)  # such a server takes the next connection at once
            if parent.restart_count == 0 and parent.task_consumer is None:
                # For Celery it was reached, and so was no matter of the start any more.
                parent.first_connection_attempt = True
            raise ConnectionError(f"refused for now: {exc}") from exc

    blueprint.start = start_again


def keep_running_jobs(consumer: Consumer) -> None:
    """Let a pool of processes remember what runs in it when the connection is lost.

    Before 5.7 Celery makes it forget every job, as a plain task's message is delivered anew. But
    then no end of what runs is heard of, and a lease outlives the connection.
    """
    pool: Any = consumer.pool
    flush = getattr(pool, "flush", None)
    if pools.kind(pool) != "prefork" or flush is None:
        return

    def flush_what_waits() -> None:
        if pool._pool is None:  # noqa: SLF001  (stopped by a cold shutdown's handler)
            flush()
            return
        jobs, busy = pool._pool._cache, pool._pool._busy_workers  # noqa: SLF001
        running, were_busy = [job for job in jobs.values() if job.accepted()], set(busy)
        flush()
        left = [job for job in running if not job.ready()]
        jobs.update({job._job: job for job in left})  # noqa: SLF001
        # Without this a job is given to a process that has one, although another is idle.
        busy.update(were_busy & {_inbox_of(job) for job in left})
        _watch_again(pool._pool)  # noqa: SLF001

    pool.flush = flush_what_waits


def read_to_the_end(consumer: Consumer) -> None:
    """Let the event loop give up no message of a task process that is read in part.

    Where Celery resets it, at each stop before 5.7 and at each lost connection, the rest of such a
    message is taken for the next one: its process waits for half a minute, or for good, to be read.
    """
    hub: Any = consumer.hub  # type: ignore[attr-defined]
    if hub is None:
        return
    reset = hub.reset

    def reset_between_messages() -> None:
        for descriptor, (callback, _) in list(hub.readers.items()):
            if isgenerator(callback):
                _finish(descriptor, callback)
        reset()

    hub.reset = reset_between_messages


def _finish(descriptor: int, reading: Iterator[Any]) -> None:
    try:
        while wait([descriptor], PATIENCE):
            next(reading)
    except (StopIteration, OSError, EOFError):  # it is read, or its process is gone
        return
    except Exception:  # what came of the message is no reason to keep the loop from its end
        logger.exception("a task's end was not taken in")
        return
    logger.warning("a task process has not written on for %g s: its message is given up", PATIENCE)


def _watch_again(processes: Any) -> None:
    """Give each task process that is not watched for its end something to watch.

    When several end in the same moment, Celery takes the news of one, by the number of its
    descriptor, for that of the other's successor, and watches that no more. At the next connection
    it fails by this: ``file descriptor is None``, or ``no attribute 'fileno'``; the worker ends.
    """
    for process in processes._pool:  # noqa: SLF001
        if getattr(process, "_sentinel_poll", 0) is None:
            process._sentinel_poll = os.dup(process._popen.sentinel)  # noqa: SLF001


def _inbox_of(job: Any) -> int | None:
    """Return the descriptor by which a pool knows the process of a job; None: it is gone."""
    process = job._write_to or job._scheduled_for  # noqa: SLF001
    return process.inqW_fd if process is not None and process._is_alive() else None  # noqa: SLF001
