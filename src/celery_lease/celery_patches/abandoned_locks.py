"""Frees the locks of a prefork pool without an event loop, as with pgmq, when their holder dies.

The processes of such a pool share one queue of jobs. An idle one waits in it and holds its lock: if
that process is killed, no other one gets a job any more, and the pool, which waits for all of them
to end, never stops. So the lock is one that the kernel frees at its holder's death: a record lock
on a file in memory. The queue of results has another one.

Upstream: not reported; billiard keeps a semaphore there, which knows no holder.
Versions: billiard 4.2.1 to 4.3.0, Celery 5.5.3 to 5.7.0.
"""

from __future__ import annotations

import os
from typing import Any

from celery_lease.celery_patches import extend_pools


class RecordLock:
    """A lock between a process and those that it forks; not between the threads of one."""

    def __init__(self) -> None:
        import fcntl  # noqa: PLC0415  (not on Windows)

        self._lock = fcntl.lockf
        self._take, self._free = fcntl.LOCK_EX, fcntl.LOCK_UN
        self._fd = os.memfd_create("celery-lease-pool", os.MFD_CLOEXEC)

    def acquire(self) -> bool:
        self._lock(self._fd, self._take)
        return True

    def release(self) -> None:
        self._lock(self._fd, self._free)

    def __del__(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def free_abandoned_locks(pool_class: Any) -> None:
    """Have a prefork *pool_class* make pools with such locks; its processes are to be forked."""
    if hasattr(os, "memfd_create"):
        extend_pools(pool_class, _Freeing)


class _Freeing:
    """The part of a pool that makes its queues."""

    _inqueue: Any
    _outqueue: Any

    def _setup_queues(self) -> None:
        super()._setup_queues()  # type: ignore[misc]
        self._inqueue._rlock, self._outqueue._wlock = RecordLock(), RecordLock()  # noqa: SLF001
