"""Keeps a job in a stopping prefork pool if its process has not reported its start yet.

Celery forgets it and never reads its end: the process waits half a minute for that, and a plain
task's message is not acknowledged. If the job was written in part, the rest is not written: its
process waits for that for ever, and the worker for the process.

Upstream: not reported.
Versions: Celery 5.7.0 forgets it; 5.5.3 to 5.7.0 write no rest.
"""

from __future__ import annotations

from typing import Any

from billiard.pool import CLOSE


def keep_sent_jobs(consumer: Any) -> None:
    """Make the pool of a *consumer* keep sent jobs, and write those that were sent in part."""
    pool = consumer.pool
    flush = getattr(pool, "flush", None)
    if type(pool).__module__ != "celery.concurrency.prefork" or flush is None:
        return

    def flush_what_was_not_sent() -> None:
        processes = pool._pool  # noqa: SLF001
        if processes is None or processes._state != CLOSE:  # noqa: SLF001
            flush()
            return
        _write_to_the_end(processes)
        sent = [job for job in processes._cache.values() if job._write_to]  # noqa: SLF001
        flush()
        left = {job._job: job for job in sent if not job.ready()}  # noqa: SLF001
        processes._cache.update(left)  # noqa: SLF001

    pool.flush = flush_what_was_not_sent


def _write_to_the_end(processes: Any) -> None:
    for job in tuple(processes._cache.values()):  # noqa: SLF001
        writer = getattr(job, "_writer", None)  # a weak reference
        writing = writer and writer()
        if writing in processes._active_writers:  # noqa: SLF001
            processes._flush_writer(job._write_to, writing)  # noqa: SLF001
