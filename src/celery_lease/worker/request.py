"""A leased task's request: connects Celery's handling of a task with the lease of its message.

Celery decides when a task starts, ends, fails or times out; this class does for each of these
what the lease needs, and skips Celery's own handling once the lease is gone.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import (
    TaskRevokedError,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.signals import task_revoked
from celery.worker.request import Request

from celery_lease.board import BoardFull
from celery_lease.celery_patches.wrapped_failures import unwrapped
from celery_lease.core.errors import TooManyDeliveries
from celery_lease.core.ticket import KEY as TICKET
from celery_lease.task import hooks
from celery_lease.task.outcome import Cancelled, Discarded, HandedOver, NotStored, OutOfReach
from celery_lease.worker import beginnings, compat, exclusive, poison, pools
from celery_lease.worker.entries import Ending, LeaseHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


logger = logging.getLogger(__name__)

#: The errors by which Celery reports that a task process ended in a task (5.7: also its exit).
PROCESS_GONE = (WorkerLostError, TimeLimitExceeded, SystemExit, KeyboardInterrupt)


class LeasedRequest(Request):
    """One delivery of a leased task. Without a lease it is a plain request."""

    lease: LeaseHandle | None
    ending = Ending.HANDED_OVER  #: the way in which it leaves the registry when it is requeued
    is_void = False  #: it ended without an outcome, because its lease was gone
    _waits_for_backend = False  # Celery is about to store an outcome
    _acknowledges = False  # and has acknowledged before that
    _last_event = ""  # the last event that was sent
    _is_back = False  # the message is back in its queue
    _revoked_as: tuple[Ending, ...] = ()  # for its exclusive key
    _takes_key_late = False  # a thread or greenlet takes the key when it accepts the request

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self.lease = getattr(message, "lease", None)
        if exclusive.turned_away(self.lease) is not None:
            # Celery asks what has an expiry whether it is revoked, before anything else.
            self.expires = datetime.max.replace(tzinfo=UTC)

    def __init_subclass__(cls, **options: Any) -> None:
        """Begin the lease where Celery's per-task subclass hands a request to the pool.

        ``celery.worker.request.create_request_cls`` overrides ``execute_using_pool`` without
        calling its base, so the base cannot do this.
        """
        super().__init_subclass__(**options)
        if "execute_using_pool" not in vars(cls):
            return
        execute = cls.execute_using_pool

        def execute_using_pool(self: LeasedRequest, pool: Any, **kwargs: Any) -> Any:
            if self.lease is None:
                return execute(self, pool, **kwargs)
            pools.wait_for_process(pool)
            return self._execute(self.lease, partial(execute, self, **kwargs), pool)

        cls.execute_using_pool = execute_using_pool  # type: ignore[assignment, method-assign]

    def _execute(self, lease: LeaseHandle, execute: Callable[[Any], Any], pool: Any) -> Any:
        """Give the request to the pool, by Celery's own way, which is *execute*."""
        self.delivery_info[TICKET] = self._begin(lease)  # type: ignore[literal-required]
        if lease.entry is not None and lease.entry.exclusive is not None:
            self._takes_key_late = pools.queues_inside(pool)
            if not self._takes_key_late:
                exclusive.take(self, lease)
        self._note_beginning(lease, pool)
        return execute(pool)

    def _note_beginning(self, lease: LeaseHandle, pool: Any) -> None:
        """Note that the task begins, if the pool reports its acceptance too late."""
        if lease.entry is not None and pools.kind(pool) == "prefork":
            beginnings.note(lease.leases, lease.entry)

    def _begin(self, lease: LeaseHandle) -> dict[str, Any]:
        """Return the ticket of the task, which is given to the pool.

        Raises:
            TaskRevokedError: Celery's error for a task that must not start: its lease is gone, or
                its message was lost too often.
        """
        if lease.fault is not None:
            self.on_failure(unwrapped(hooks.raised(lease.fault)))
            raise TaskRevokedError(self.id)
        try:
            ticket = lease.leases.start(lease.tag)
        except TooManyDeliveries as exc:
            if not poison.dead_letter(self, lease, exc):
                self._drop(lease)
            raise TaskRevokedError(self.id) from None
        except BoardFull:
            logger.warning(
                "no room for task %s[%s]: too many are in this worker's pool; requeued, and no "
                "more messages are taken until one ends. Lower worker_prefetch_multiplier",
                self.name,
                self.id,
                extra=lease.fields(self),
            )
            lease.leases.requeue([lease.tag])
            ticket = None
        if ticket is None:
            text = "task %s[%s] not started: its lease is gone"
            logger.info(text, self.name, self.id, extra=lease.fields(self))
            self._drop(lease)
            raise TaskRevokedError(self.id)
        if lease.leases.publishes:
            lease.leases.requested(lease.tag, self)
        return ticket

    def revoked(self) -> bool:
        """Revoke the task if it was called off, or has to give way to another one of its key."""
        answer = exclusive.turned_away(self.lease)
        if answer is None or self.lease is None:
            return bool(super().revoked())
        if not self._already_revoked:  # type: ignore[attr-defined]
            exclusive.give_way(self, self.lease, answer)
        return True

    def announce_revoked(self, reason: str, ending: Ending) -> None:
        """Revoke the task for its exclusive key, in Celery's way."""
        self._revoked_as = (ending,)
        self._announce_revoked(reason, terminated=False, signum=None, expired=False)

    def _announce_revoked(self, reason: str, *args: Any, **options: Any) -> None:
        """Store that the task was revoked, after everything else about it; call its hooks.

        If its lease is gone, the worker that has the message now revokes it and calls the hooks.
        """
        lost = self.lease is not None and self.lease.leases.is_lost(self.lease.tag)
        self._end_progress()
        with self._stored_first():
            super()._announce_revoked(reason, *args, **options)  # type: ignore[misc]
        if not lost:
            self._call_hooks(states.REVOKED, TaskRevokedError(reason))

    def _call_hooks(self, state: str, exc: Exception) -> None:
        """Call the task's hooks for an end that the main process caused."""
        if self.lease is not None:
            context: Any = self._context  # type: ignore[attr-defined]
            hooks.call(self.task, context, state, exc, self.lease.fields(self))

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002  (Celery's name)
        """Send an event to monitors, and remember its type."""
        self._last_event = type
        super().send_event(type, **fields)

    def _end_progress(self) -> None:
        if self.lease is not None:
            self.lease.leases.on_end(self.lease.tag)

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        """Start the lease's running time: a task process took the request."""
        if self.lease is not None:
            if self._takes_key_late:
                exclusive.take_inside(self, self.lease)
            self.lease.leases.accepted(self.lease.tag, pid)
        super().on_accepted(pid, time_accepted)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Fail the task on its hard time limit, unless :meth:`on_failure` already has.

        A prefork pool has called that by now; a green pool reports a limit only here. Celery's own
        method would store the failure again, and from 5.7 on call the task's hooks before the
        message is settled: an error in a hook would requeue it.
        """
        if soft or self.lease is None:
            super().on_timeout(soft, timeout)
            return
        if not (self.is_void or self._is_back or self._last_event == "task-failed"):
            self.on_failure(hooks.raised(TimeLimitExceeded(timeout)))
        if self._last_event == "task-failed":
            text = "Hard time limit (%ss) exceeded for %s[%s]"  # Celery's own
            logger.error(text, timeout, self.name, self.id, extra=self.lease.fields(self))
            if isinstance(self, LastRequest):
                super().on_timeout(soft, timeout)  # the author's method

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> None:
        """Handle a failed task; a task that lost its lease has no failure, its outcome is void."""
        exc_info = unwrapped(exc_info)
        exc = exc_info.exception
        if isinstance(exc, MemoryError) and self.lease is not None:
            exc_info = poison.survivable(exc_info, exc, stored=return_ok)
            exc = exc_info.exception
        if not return_ok and (self._ended_before(exc) or self._was_killed(exc)):
            return
        self.ending = _ending(exc)
        if self.lease is not None and self.ending.is_loss:
            self.lease.leases.process_ended(self.lease.tag, exc)
        if self._goes_back(exc, return_ok):
            return
        if not return_ok:
            self._end_progress()
        with self._stored_first():
            super().on_failure(exc_info, send_failed_event, return_ok)
        if isinstance(exc, Cancelled):
            self._send_cancelled()
        elif not return_ok and self._last_event == "task-failed":
            self._failed_here(exc)
        if self.lease is not None and not self.acknowledged:
            # Celery cancelled the task, and leaves the message to a broker that redelivers
            # unacknowledged messages; a leased message is not redelivered while it is held.
            self.ending = Ending.HANDED_OVER
            self.reject(requeue=True)

    def _failed_here(self, exc: BaseException) -> None:
        """Call the hooks of a task that Celery failed in the main process."""
        error = exc if isinstance(exc, Exception) else WorkerLostError(repr(exc))
        self._call_hooks(states.FAILURE, error)

    def _retry_worker_lost(self, exc: BaseException, exc_info: Any) -> bool:
        """Retry a task whose process died, where Celery 5.7 does that, even if ``on_retry`` fails.

        Celery sends and stores the retry, and its event, before it calls ``on_retry``.
        """
        try:
            return bool(super()._retry_worker_lost(exc, exc_info))  # type: ignore[misc]
        except Exception:
            if self.lease is None or self._last_event != "task-retried":
                raise
            text = "on_retry of task %s[%s] failed"
            logger.exception(text, self.name, self.id, extra=self.lease.fields(self))
            return True

    def acknowledge(self) -> None:
        """Settle the message at once, then let Celery free its place in the prefetch window.

        At once, because Celery's acknowledgement goes through the event loop, which does not turn
        while the worker stops.
        """
        if self._waits_for_backend:
            self._acknowledges = True
            return
        if self.lease is not None and not self.acknowledged:
            self.lease.leases.complete(self.lease.tag, *self._revoked_as)
        super().acknowledge()

    @contextmanager
    def _stored_first(self) -> Iterator[None]:
        """Delay Celery's acknowledgement until its main process has stored the outcome.

        A failure to store is not retried, as the main loop would wait: the message goes back, as a
        loss.
        """
        self._waits_for_backend = self.lease is not None
        try:
            yield
        except Exception:
            self._waits_for_backend = False
            if self.lease is not None and not self.acknowledged:
                self.end(self.lease.leases.not_stored)
            raise
        self._waits_for_backend = False
        if self._acknowledges:
            self.acknowledge()

    def reject(self, requeue: bool = False) -> None:
        """Return the message to its queue at once, or drop it."""
        self._is_back = requeue
        if self.lease is not None and not self.acknowledged:
            if requeue:
                self.lease.leases.requeue(
                    [self.lease.tag],
                    orderly=not self.ending.is_loss,
                    front=self.ending.is_loss,
                    ending=self.ending,
                )
            else:
                self.lease.leases.drop(self.lease.tag)
        super().reject(requeue)

    def cancel(  # type: ignore[override]  # 5.5 knows no emit_retry
        self, pool: Any, signal: Any = None, **options: Any
    ) -> None:
        """End the task because the worker ends, but not because its connection was lost.

        Celery can cancel late-ack tasks on a lost connection, since it could not acknowledge them
        any more. A lease outlives the connection.
        """
        if self.lease is None:
            super().cancel(pool, signal, **options)
        elif compat.in_signal_handler() and not self._is_over(self.lease):
            if pools.kind(pool) != "prefork":
                # Other pools cannot end a task inside of a signal handler, which may have
                # interrupted the task itself; Celery's attempt would fail it.
                self.lease.leases.hurry()
                return
            storing = self.lease.leases.is_storing(self.lease.tag)  # its end leaves the body, too
            try:
                super().cancel(pool, signal, **options)
            except Exception:  # a result backend's; it would end Celery's handler, and no more
                text = "task %s[%s] is ended, but the result backend does not store that"
                logger.exception(text, self.name, self.id, extra=self.lease.fields(self))
            self.lease.leases.end_soon(self.lease.tag, storing=storing)

    def _goes_back(self, exc: BaseException, return_ok: bool) -> bool:
        """Return the message of a task without an outcome; False: it has one."""
        if self.lease is not None and isinstance(exc, OutOfReach):
            poison.stop_for(self, self.lease, exc)
        if self.lease is not None and self._came_to_nothing(exc, return_ok):
            self._drop(self.lease)
        elif self.lease is not None and isinstance(exc, NotStored):
            self.end(self.lease.leases.not_stored)
        elif isinstance(exc, HandedOver):
            compat.mark_ready(self)
            self.reject(requeue=True)
        else:
            return False
        return True

    def _came_to_nothing(self, exc: BaseException, return_ok: bool) -> bool:
        """Whether the task process discarded the outcome, or died after its lease had ended.

        With *return_ok* the task process stored the outcome while it held the lease.
        """
        if isinstance(exc, Discarded):
            return True
        if return_ok or self.lease is None:
            return False
        if isinstance(exc, Terminated):  # by a revoke, unless the worker ended it
            return not self.lease.leases.knows(self.lease.tag)
        return self.lease.leases.is_lost(self.lease.tag)

    def _send_cancelled(self) -> None:
        """Send the event and the signal that Celery sends for a revoked task, after its result."""
        facts = {"terminated": False, "signum": None, "expired": False}
        self.send_event("task-revoked", **facts)
        task_revoked.send(sender=self.task, request=self._context, **facts)  # type: ignore[attr-defined]

    def _is_over(self, lease: LeaseHandle) -> bool:
        """Whether its lease is lost, or it has an outcome: the keeper settles its message then."""
        reported = lease.entry is not None and lease.entry.outcome(lease.leases.board)
        return bool(reported) or lease.leases.is_lost(lease.tag)

    def _ended_before(self, what: object) -> bool:
        """Whether *what* hit the task in a hook, after its outcome: then it changes nothing.

        The main process may get *what* before the outcome or after it, and settles by the outcome.
        """
        lease = self.lease
        if lease is None or lease.entry is None or not lease.leases.settle_outcome(lease.entry):
            return False
        text = "task %s[%s] was over, its hooks were not: %s"
        logger.warning(text, self.name, self.id, what, extra=lease.fields(self))
        self.end(lambda _: None)
        return True

    def _was_killed(self, exc: BaseException) -> bool:
        """Release the message of a process that this worker has killed; False: it did not.

        To Celery that is a revoke (``Terminated``), to be stored and acknowledged.
        """
        entry = self.lease.entry if self.lease is not None else None
        release = entry.release if entry is not None else None
        if release is None or not isinstance(exc, (Terminated, WorkerLostError)):
            return False
        self.end(lambda _: release())
        return True

    def _drop(self, lease: LeaseHandle) -> None:
        """End a request without an outcome; if it still holds the message, requeue that at once."""
        self.end(lease.leases.discard)

    def end(self, settle: Callable[[str], object]) -> None:
        """End a request without any store or event of Celery; *settle* is called with its tag."""
        self.is_void = True
        compat.mark_ready(self)
        if self.lease is not None:
            settle(self.lease.tag)
        super().acknowledge()


class LastRequest(Request):
    """A base between an author's request class, mixed with a leased one, and Celery's."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Skip Celery's handling of a hard time limit of a leased task: its failure is stored."""
        if soft or getattr(self, "lease", None) is None:
            super().on_timeout(soft, timeout)


def _ending(exc: BaseException) -> Ending:
    """Return the ending of a message that is requeued after this error."""
    if isinstance(exc, WorkerLostError):  # a time limit is no such error
        return Ending.PROCESS_DIED
    return Ending.LOST if isinstance(exc, PROCESS_GONE) else Ending.HANDED_OVER
