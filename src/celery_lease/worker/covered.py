"""The requests of undecorated tasks that get leases by ``lease_tasks``.

A late-acknowledged one has the life of a leased task's, with the ticket beside its arguments (see
:mod:`celery_lease.task.covering`). An early-acknowledged one has a lease while it waits, and is
acknowledged when it starts, as in Celery; but fenced, and its task starts only if that succeeded:
then the message is nobody else's, and it runs once at most. From there on it is a plain request.

It starts when its pool accepts it. A pool that runs tasks in this process reports that right
before, in the task's own thread or greenlet. A process of a pool reports it and goes on: there it
waits on the board for the answer (:mod:`celery_lease.board.granting`), so that what waits in the
pool's own buffers is held, too; one that cannot open the board gets none, and the message goes
back. Of another project's pool neither is known; with one the acknowledgement comes before the pool
has the task.

``complete_first`` is called by whichever thread accepts: the main loop, a pool's thread or
greenlet, or, in a pool of processes without an event loop, the one that reads its results.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.exceptions import TaskRevokedError, TimeLimitExceeded
from celery.worker.request import Request

from celery_lease.settings import LeaseConfigError
from celery_lease.task import covering
from celery_lease.task.covering import NOT_STARTED
from celery_lease.task.outcome import Discarded
from celery_lease.worker import pools
from celery_lease.worker.mixing import mixed
from celery_lease.worker.request import LeasedRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.worker.entries import LeaseHandle

logger = logging.getLogger(__name__)

#: Pools that call ``on_accepted`` before the task, in its thread or greenlet.
ACCEPT_FIRST = ("solo", "thread", "gevent", "eventlet")
#: Seconds that a pool may take to see and to report that a process has ended.
POOL_LOOKS = 30.0
#: Whether Celery calls a task's hooks at its hard time limit: from 5.7 on.
HOOKS_AT_LIMIT = "on_failure" in Request.on_timeout.__code__.co_names


class CoveredRequest(LeasedRequest):
    """One delivery of an undecorated task."""

    _refused = False  # its acknowledgement, so that it must not start

    def _execute(self, lease: LeaseHandle, execute: Callable[[Any], Any], pool: Any) -> Any:
        kind = pools.kind(pool)
        if self.task.acks_late:
            given = _With(pool, covering.trace, self._begin(lease))
            self._leave_deaths_to_pool(lease)
            self._note_beginning(lease, pool)
        elif kind == "prefork":
            given = _With(pool, covering.start, self._begin(lease))
        elif kind in ACCEPT_FIRST:
            given = _With(pool, self.run_unless_refused)
        else:
            if not self.revoked() and not self._acknowledge_first(lease):
                self._drop(lease)
                raise TaskRevokedError(self.id)
            return execute(pool)
        pool_like: Any = given
        return Request.execute_using_pool(self, pool_like)

    def _leave_deaths_to_pool(self, lease: LeaseHandle) -> None:
        """Keep the lease of a dead process until the pool reports, where the task may fail for it.

        Celery's pool waits for a result that may be on its way, for ``worker_lost_wait``.
        """
        retries = getattr(self.task, "retry_on_worker_lost", False)  # 5.7
        if lease.entry is not None and (retries or not self.task.reject_on_worker_lost):
            lease.entry.grace = self.task.app.conf.worker_lost_wait + POOL_LOOKS

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        """Acknowledge an early task; one whose acknowledgement is refused is not accepted."""
        if self.lease is not None and not self.task.acks_late:
            self._refused = not self._acknowledge_first(self.lease)
        if not self._refused:
            super().on_accepted(pid, time_accepted)

    def _acknowledge_first(self, lease: LeaseHandle) -> bool:
        if not lease.leases.complete_first(lease.tag):
            text = "task %s[%s] " + NOT_STARTED
            logger.info(text, self.name, self.id, extra=lease.fields(self))
            return False
        self.lease = None
        self.acknowledge()  # so that Celery frees its place in the prefetch window
        return True

    def run_unless_refused(self, target: Callable[..., Any], *args: Any) -> Any:
        """Call what runs the task, unless it must not start."""
        return covering.nothing(Discarded(NOT_STARTED)) if self._refused else target(*args)

    def _call_hooks(self, state: str, exc: Exception) -> None:
        """Call the task's hooks where Celery does."""
        if HOOKS_AT_LIMIT and isinstance(exc, TimeLimitExceeded):
            super()._call_hooks(state, exc)


class _With:
    """A pool that is given something else to call, with Celery's own function as an argument."""

    def __init__(self, pool: Any, call: Callable[..., Any], *first: Any) -> None:
        self._pool, self._call, self._first = pool, call, first

    def apply_async(self, target: Any, args: tuple[Any, ...], **options: Any) -> Any:
        return self._pool.apply_async(self._call, (*self._first, target, *args), **options)


def cover(task: Any) -> str:
    """Have a worker make requests with leases of an undecorated task's messages.

    Returns:
        Why that cannot be, or an empty string.
    """
    reason = obstacle(task)
    if not reason:
        task.Request = mixed(task.Request, task.name, CoveredRequest)
    return reason


def obstacle(task: Any) -> str:
    """Return why an undecorated task cannot get leases, or an empty string."""
    if task.Strategy != Task.Strategy:
        return f"it has a strategy of its own, {task.Strategy!r}"
    try:
        mixed(task.Request, task.name, CoveredRequest)
    except LeaseConfigError as exc:
        return f"its Request {exc.faults[0].rule}"
    return ""
