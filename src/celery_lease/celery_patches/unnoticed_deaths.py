"""Notices every death under a job in a prefork pool without an event loop, as with pgmq.

Such a pool looks for the jobs of a dead process once: when it finds it dead. One thread looks,
another one reads what the processes have sent. A job whose start is read after that look belongs to
a process that the pool does not know any more, and one whose process died before it could report
the start belongs to none. Both have no end, and a plain task's message stays unacknowledged, until
the worker stops; at the death of another process the first kind is found.

Upstream: not reported.
Versions: billiard 4.2.1 to 4.3.0, Celery 5.5.3 to 5.7.0.
"""

from __future__ import annotations

from time import monotonic  # noqa: TID251  (billiard compares with it)
from typing import TYPE_CHECKING, Any

from billiard.pool import ApplyResult

from celery_lease.celery_patches import extend_pools

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Dead processes remembered, for their exit codes.
REMEMBERED = 100


def notice_all_deaths(pool_class: Any) -> None:
    """Have a prefork *pool_class* make pools that look again."""
    extend_pools(pool_class, _LooksAgain)


class _LooksAgain:
    """The part of a pool that finds dead processes; for the pool's thread that looks for them."""

    _pool: list[Any]
    _cache: dict[int, Any]
    _inqueue: Any
    _taskqueue: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._dead: dict[int, Any] = {}  # processes by number, the latest last
        # Jobs without a start: when a process died since they were sent, and its exit code.
        self._unreported: dict[Any, tuple[float, int]] = {}
        super().__init__(*args, **kwargs)

    def _join_exited_workers(self, shutdown: bool = False) -> list[int]:
        died = {each.pid: each for each in self._pool if each.exitcode is not None}
        if died:
            self._dead = dict([*(self._dead | died).items()][-REMEMBERED:])
        found: list[int] = super()._join_exited_workers(shutdown)  # type: ignore[misc]
        self._find_forgotten()
        self._find_unreported([each.exitcode for each in died.values()])
        return found

    def _find_forgotten(self) -> None:
        """Find the jobs of processes that were not there any more when their start was read."""
        living = {each.pid for each in self._pool}
        for job in self._jobs():
            gone = [pid for pid in job.worker_pids() if pid not in living]
            if gone:
                self._lose(job, gone[0])

    def _lose(self, job: Any, pid: int) -> None:
        process = self._dead.get(pid)
        exitcode = process.exitcode if process is not None else 0
        if getattr(process, "_job_terminated", False):
            job._set_terminated(exitcode)  # noqa: SLF001
        else:
            self.on_job_process_lost(job, pid, exitcode)  # type: ignore[attr-defined]

    def _find_unreported(self, exitcodes: list[int]) -> None:
        """Find the jobs that are in no queue, and that no living process reports in time."""
        now = monotonic()
        unreported = {job for job in self._jobs() if not job.accepted()}
        since = {job: since for job, since in self._unreported.items() if job in unreported}
        if exitcodes:
            since = {**dict.fromkeys(unreported, (now, exitcodes[0])), **since}
        self._unreported = since
        if not since or not self._taskqueue.empty() or self._inqueue._reader.poll():  # noqa: SLF001
            return
        for job, (died_at, exitcode) in since.items():
            if now - died_at > job._lost_worker_timeout:  # noqa: SLF001
                self.mark_as_worker_lost(job, exitcode)  # type: ignore[attr-defined]
                job.discard()

    def _jobs(self) -> Iterator[Any]:
        """Yield the jobs without an end."""
        for job in list(self._cache.values()):
            waits = isinstance(job, ApplyResult) and not job.ready()
            if waits and not job._worker_lost:  # noqa: SLF001
                yield job
