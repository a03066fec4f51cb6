"""Keeps running jobs in a prefork pool when the connection to the broker is lost.

Celery forgets them: a plain task's message is delivered again, so it has no use for the old run.
But then it does not notice their ends, and a lease outlives the connection.

Upstream: https://github.com/celery/celery/pull/10151 and /10346, after /6863 and /7273.
Versions: Celery 5.5.3 and 5.6.2; repaired in 5.7.0.
"""

from __future__ import annotations

from typing import Any


def is_needed() -> bool:
    """Whether Celery forgets them: where it does not, it keeps a set of busy processes."""
    from celery.concurrency.asynpool import AsynPool  # noqa: PLC0415  (for such pools only)

    return "still_busy" not in AsynPool.flush.__code__.co_varnames


def keep_running_jobs(consumer: Any) -> None:
    """Make the pool of a *consumer* keep running jobs, and mark their processes as busy."""
    pool = consumer.pool
    flush = getattr(pool, "flush", None)  # None: a pool without an event loop
    if type(pool).__module__ != "celery.concurrency.prefork" or flush is None or not is_needed():
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
        # Without this a busy process gets another job, although another one is idle.
        busy.update(were_busy & {_inbox_of(job) for job in left})

    pool.flush = flush_what_waits


def _inbox_of(job: Any) -> int | None:
    """Return the descriptor by which a pool knows the process of a job; None: it is gone."""
    process = job._write_to or job._scheduled_for  # noqa: SLF001
    return process.inqW_fd if process is not None and process._is_alive() else None  # noqa: SLF001
