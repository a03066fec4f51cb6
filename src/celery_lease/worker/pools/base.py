"""The base of the pool adapters, with defaults for every kind of pool."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery.apps.worker import Worker
from celery.platforms import EX_FAILURE
from celery.worker import state

from celery_lease.worker import compat, diagnosis
from celery_lease.worker.processes import is_alive

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from celery.worker.consumer import Consumer

    from celery_lease.worker.entries import LeaseEntry

#: Modules that wait for the broker while a worker closes; under gevent and eventlet the latter two
#: wait for a greenlet that does.
WAITS_FOR_BROKER = ("kombu.transport.", "amqp.", "celery.worker.pidbox", "celery.events.")


class Pool:
    """A worker's pool. Created in the main thread, or the main greenlet (gevent, eventlet)."""

    alone = False  #: a task has its process for itself while it runs
    in_loop = False  #: tasks run in the worker's main loop, which stands still meanwhile
    goes_on = False  #: tasks go on while the main thread stands in a signal handler
    ends_itself = False  #: it can be stopped in a signal handler, and comes to an end there
    cancels = True  #: Celery can cancel its tasks

    def __init__(self, consumer: Consumer, leave_now: Callable[[], None] = lambda: None) -> None:
        self.celery_pool: Any = consumer.pool
        self._controller: Any = consumer.controller  # type: ignore[attr-defined]
        self._leave_now = leave_now
        self._main_frame = self._frame_of_this()

    def slots(self) -> int:
        """Return the number of tasks that can run at once."""
        return int(self.celery_pool.num_processes)

    def running(self) -> set[str]:
        """Return the tags of all leases whose tasks run, including disowned tasks."""
        return {lease.tag for lease in _active_leases() if lease is not None}

    def runs_plain_tasks(self) -> bool:
        """Whether a task without a lease runs in this worker."""
        return None in _active_leases()

    def lives(self, number: int) -> bool:
        """Whether a task's process is alive; *number* is the pool's number for it."""
        return is_alive(number)

    def diagnose(self, entry: LeaseEntry) -> diagnosis.Diagnosis:
        """Return a diagnosis of a task."""
        return diagnosis.of_thread(entry.lease.claim.tag)

    def end(self, entry: LeaseEntry, release: Callable[[], None]) -> bool:
        """End a task and release its message; False: it could not be ended, and is disowned."""
        del entry
        release()
        return False

    def stopping(self) -> bool:
        """Whether the worker was asked to stop."""
        return compat.is_stopping()

    def stop(self) -> None:
        """Ask the worker to stop, with an error."""
        compat.stop_worker()

    def leave(self) -> None:
        """Exit the worker although disowned tasks still run in it."""
        # A worker embedded in a program, as in users' tests, must not end that program.
        if isinstance(self._controller, Worker) and not self.runs_plain_tasks():
            self._leave_now()

    def hangs_in(self) -> str:
        """Return where the main thread waits for the broker; "": nowhere, or plain tasks run."""
        return "" if self.runs_plain_tasks() else _waits_for_broker(self._main_frame())

    def failed(self) -> None:
        """Set the worker's exit code to a failure: tasks had to be ended."""
        self._controller.exitcode = EX_FAILURE

    def _frame_of_this(self) -> Callable[[], FrameType | None]:
        """Return a function by which other threads get the frame of this thread or greenlet."""
        thread = threading.get_ident()
        return lambda: sys._current_frames().get(thread)  # noqa: SLF001  (documented)


class Thread(Pool):
    """A pool of threads: no task can be ended from outside, and all go on in a signal handler."""

    goes_on = True
    cancels = False


class Solo(Pool):
    """The solo pool: each task runs in the main loop, and its beats prove the loop's life."""

    in_loop = True


def _active_leases() -> list[Any]:
    while True:
        with suppress(RuntimeError):  # the main loop changed it at the same time
            return [getattr(each, "lease", None) for each in state.active_requests]


def _waits_for_broker(frame: FrameType | None) -> str:
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(WAITS_FOR_BROKER):
            return f"{module}.{frame.f_code.co_name}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""
