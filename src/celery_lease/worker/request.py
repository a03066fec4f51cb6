"""A leased task's request: where Celery's worker meets the lease of its message.

Celery decides when a task starts, ends, fails or times out; this class gives each of these its
meaning for the lease, and turns Celery's own handling away once the lease is gone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]
from celery.exceptions import (
    TaskRevokedError,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.signals import task_revoked
from celery.worker.request import Request

from celery_lease.core.board import BoardFull
from celery_lease.core.errors import TooManyDeliveries
from celery_lease.outcome import Cancelled, Discarded, HandedOver
from celery_lease.worker import compat, poison
from celery_lease.worker.compat import pools
from celery_lease.worker.held import Ending

if TYPE_CHECKING:
    from celery_lease.worker.held import Handle

logger = logging.getLogger(__name__)

#: How Celery tells that a task process ended in the middle of a task (5.7: also by its exit).
PROCESS_GONE = (WorkerLostError, TimeLimitExceeded, SystemExit, KeyboardInterrupt)


class LeasedRequest(Request):
    """One delivery of a leased task. Without a lease it is a plain request."""

    lease: Handle | None
    lease_loss = False  #: a return to the queue from here on counts as a loss
    is_void = False  #: ended without an outcome, because its lease was gone

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self.lease = getattr(message, "lease", None)

    def __init_subclass__(cls, **options: Any) -> None:
        """Begin the lease where Celery's per-task subclass hands a request to the pool.

        ``celery.worker.request.create_request_cls`` overrides ``execute_using_pool`` without
        calling its base, so the base cannot do this.
        """
        super().__init_subclass__(**options)
        execute = cls.execute_using_pool

        def execute_using_pool(self: LeasedRequest, pool: Any, **kwargs: Any) -> Any:
            if self.lease is not None:
                self._begin(self.lease)
            return execute(self, pool, **kwargs)

        cls.execute_using_pool = execute_using_pool  # type: ignore[assignment, method-assign]

    def _begin(self, lease: Handle) -> None:
        """Give the task its ticket.

        Raises:
            TaskRevokedError: The task must not start; Celery's word for that. Its lease is gone, or
                its message was lost too often.
        """
        try:
            ticket = lease.leases.start(lease.tag)
        except TooManyDeliveries as exc:
            if not poison.bury(self, lease, exc):
                self._drop(lease)
            raise TaskRevokedError(self.id) from None
        except BoardFull:
            logger.warning(
                "no room for task %s[%s]: too many are in this worker's pool; handed back, and "
                "nothing more is taken until one ends. Lower worker_prefetch_multiplier",
                self.name,
                self.id,
                extra=lease.fields(self),
            )
            lease.leases.hand_back([lease.tag])
            ticket = None
        if ticket is None:
            text = "task %s[%s] not started: its lease is gone"
            logger.info(text, self.name, self.id, extra=lease.fields(self))
            self._drop(lease)
            raise TaskRevokedError(self.id)
        self.delivery_info["lease"] = ticket  # type: ignore[typeddict-unknown-key]

    def _announce_revoked(self, *args: Any, **options: Any) -> None:
        """Store that the task was revoked, last of all that is stored of it."""
        self._end_progress()
        super()._announce_revoked(*args, **options)  # type: ignore[misc]

    def _end_progress(self) -> None:
        if self.lease is not None:
            self.lease.leases.on_end(self.lease.tag)

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        """Start the lease's running time; a task process took the request."""
        if self.lease is not None:
            self.lease.leases.accepted(self.lease.tag, pid)
        super().on_accepted(pid, time_accepted)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Fail the task on its hard time limit, unless it is somebody else's by now.

        A pool tells of a hard limit twice: first by :meth:`on_failure`, which settles the message.
        """
        if not soft and self.lease is not None:
            lost = not self.acknowledged and self.lease.leases.is_lost(self.lease.tag)
            if self.is_void or lost:
                self._drop(self.lease)
                return
            self.lease_loss = True
            self._end_progress()
        super().on_timeout(soft, timeout)

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> None:
        """Deal with a failed task; one that lost its lease has not failed, it is void."""
        exc = exc_info.exception
        if isinstance(exc, ExceptionWithTraceback):
            exc = exc.exc
        if isinstance(exc, MemoryError) and self.lease is not None:
            exc_info = poison.survivable(exc_info, exc, stored=return_ok)
            exc = exc_info.exception
        self.lease_loss = isinstance(exc, PROCESS_GONE)
        if self.lease is not None and self.lease_loss:
            self.lease.leases.process_ended(self.lease.tag, exc)
        if self.lease is not None and self._came_to_nothing(exc, return_ok):
            self._drop(self.lease)
            return
        if isinstance(exc, HandedOver):
            compat.mark_ready(self)
            self.reject(requeue=True)
            return
        if not return_ok:
            self._end_progress()
        super().on_failure(exc_info, send_failed_event, return_ok)
        if isinstance(exc, Cancelled):
            self._tell_cancelled()
        if self.lease is not None and not self.acknowledged:
            # Celery cancelled the task and leaves its message to a broker that redelivers what is
            # unacknowledged; a lease is not, as long as it is held.
            self.lease_loss = False
            self.reject(requeue=True)

    def acknowledge(self) -> None:
        """Settle the message at once, then let Celery free its place in the prefetch window.

        At once, because Celery's own way leads through the event loop, which does not turn while
        the worker stops.
        """
        if self.lease is not None and not self.acknowledged:
            self.lease.leases.complete(self.lease.tag)
        super().acknowledge()

    def reject(self, requeue: bool = False) -> None:
        """Return the message at once, or drop it."""
        if self.lease is not None and not self.acknowledged:
            if requeue:
                self.lease.leases.hand_back(
                    [self.lease.tag],
                    orderly=not self.lease_loss,
                    front=self.lease_loss,
                    ending=Ending.LOST if self.lease_loss else Ending.HANDED_OVER,
                )
            else:
                self.lease.leases.drop(self.lease.tag)
        super().reject(requeue)

    def cancel(  # type: ignore[override]  # 5.5 knows no emit_retry
        self, pool: Any, signal: Any = None, **options: Any
    ) -> None:
        """End the task because the worker ends; not because its connection did.

        Celery cancels late-ack tasks on a lost connection, where asked to, since it could not
        acknowledge them any more. A lease outlives the connection.
        """
        if self.lease is None:
            super().cancel(pool, signal, **options)
        elif compat.in_signal_handler() and not self.lease.leases.is_lost(self.lease.tag):
            if pools.kind(pool) != "prefork":
                # No other pool can end a task from inside of a signal handler, which may stand in
                # the task itself; Celery's attempt would fail it.
                self.lease.leases.hurry()
                return
            super().cancel(pool, signal, **options)
            self.lease.leases.end_soon(self.lease.tag)

    def _came_to_nothing(self, exc: BaseException, return_ok: bool) -> bool:
        """Whether the task process threw the outcome away, or died after its lease did.

        With *return_ok* the task process stored the outcome while it held the lease.
        """
        if isinstance(exc, Discarded):
            return True
        if return_ok or self.lease is None:
            return False
        if isinstance(exc, Terminated):  # by a revoke, unless the worker ended it
            return not self.lease.leases.knows(self.lease.tag)
        return self.lease.leases.is_lost(self.lease.tag)

    def _tell_cancelled(self) -> None:
        """Tell monitors and receivers what Celery tells of a revoked task; it is stored already."""
        facts = {"terminated": False, "signum": None, "expired": False}
        self.send_event("task-revoked", **facts)
        task_revoked.send(sender=self.task, request=self._context, **facts)  # type: ignore[attr-defined]

    def _drop(self, lease: Handle) -> None:
        """End a request without any outcome; a message that nobody took goes back at once."""
        self.is_void = True
        compat.mark_ready(self)
        lease.leases.discard(lease.tag)
        super().acknowledge()
