"""Watches a task process again before its missing watch ends the worker at its next connection.

When several processes end at the same moment, Celery may take the event of one, by the number of
its descriptor, for that of another's successor, and stops watching that. At the next connection it
fails with ``file descriptor is None``, or ``no attribute 'fileno'``.

Upstream: https://github.com/celery/celery/issues/9250 and https://github.com/celery/kombu/pull/2623.
Versions: Celery 5.5.3 to 5.7.0, kombu 5.5.4 to 5.7.0.
"""

from __future__ import annotations

import os
from typing import Any


def watch_again(consumer: Any) -> None:
    """Give each unwatched process a descriptor to watch, before the next connection."""
    pool = consumer.pool
    flush = getattr(pool, "flush", None)  # None: a pool without an event loop, as with pgmq
    if type(pool).__module__ != "celery.concurrency.prefork" or flush is None:
        return

    def flush_and_watch() -> None:
        flush()
        processes = getattr(pool._pool, "_pool", ())  # noqa: SLF001
        for process in processes:
            if getattr(process, "_sentinel_poll", 0) is None:
                process._sentinel_poll = os.dup(process._popen.sentinel)  # noqa: SLF001

    pool.flush = flush_and_watch
