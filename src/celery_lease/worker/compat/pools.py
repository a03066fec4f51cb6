"""What a worker's pool is, runs, and can do about a task; read in Celery 5.5.3 and 5.7.0."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery.apps.worker import Worker
from celery.platforms import EX_FAILURE
from celery.worker import state

from celery_lease.worker import compat, diagnosis
from celery_lease.worker.processes import is_gone

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from celery.worker import WorkController
    from celery.worker.consumer import Consumer

    from celery_lease.worker.held import Held

#: Modules that wait for the broker while a worker closes; under gevent and eventlet the latter two
#: for a greenlet that does.
WAITS_FOR_BROKER = ("kombu.transport.", "amqp.", "celery.worker.pidbox", "celery.events.")
#: Seconds that a killed process is given to be gone.
DEATH = 1.0


def forks_its_pool(worker: WorkController) -> bool:
    """Whether this process is a worker's own, and its pool one of processes."""
    pool: type = worker.pool_cls  # type: ignore[attr-defined]
    return isinstance(worker, Worker) and pool.__module__ == "celery.concurrency.prefork"


def is_solo(consumer: Consumer) -> bool:
    """Whether tasks run inside the worker's main loop, which stands still meanwhile."""
    return type(consumer.pool).__module__ == "celery.concurrency.solo"


@dataclass(slots=True)
class Ender:
    """What a pool can do about a task that does not end by itself."""

    #: End the task and release its message, the latter by the function given; False: the task
    #: cannot be ended, it was disowned.
    end: Callable[[Held, Callable[[], None]], bool]
    leave: Callable[[], None]  #: end the worker although disowned tasks still run in it
    hangs: Callable[[], bool]  #: whether no plain task runs and the broker is waited for
    failed: Callable[[], None]  #: let the worker's exit code say that tasks had to be ended


def ender(consumer: Consumer, leave_now: Callable[[], None]) -> Ender:
    """Return what this worker's pool can do about a task that does not end by itself.

    To be called by the main thread, or under gevent and eventlet by the main greenlet.
    """

    def end(held: Held, release: Callable[[], None]) -> bool:
        return _end_task(consumer.pool, held.pid, release)

    def leave() -> None:
        if owns_process and not runs_plain_tasks():
            leave_now()

    def hangs() -> bool:
        return not runs_plain_tasks() and _waits_for_broker(main_frame())

    def failed() -> None:
        consumer.controller.exitcode = EX_FAILURE  # type: ignore[attr-defined]

    main_frame = _frame_of_this(consumer.pool)
    # A worker embedded in a program, as in users' tests, must not end that program.
    owns_process = isinstance(consumer.controller, Worker)  # type: ignore[attr-defined]
    return Ender(end, leave, hangs, failed)


@dataclass(slots=True, kw_only=True)
class Pool:
    """What the watchdog sees of a pool, and can do to it."""

    slots: Callable[[], int]  #: how many tasks can run at once
    running: Callable[[], set[str]]  #: tags of all leases whose tasks run, disowned ones too
    alone: bool  #: a task has its process for itself while it runs
    diagnose: Callable[[Held], diagnosis.Diagnosis]
    #: End the task and release its message, the latter by the function given; False: the task
    #: cannot be ended, it was disowned.
    end: Callable[[Held, Callable[[], None]], bool]
    stopping: Callable[[], bool]  #: whether the worker was asked to stop
    stop: Callable[[], None]  #: ask the worker to stop, with an error
    leave: Callable[[], None]  #: end the worker although tasks still run in it


def watched(consumer: Consumer, ends: Ender) -> Pool:
    """Return what the watchdog sees of this worker's pool, and can do to it by *ends*."""
    pool = consumer.pool

    def diagnose(held: Held) -> diagnosis.Diagnosis:
        if alone and held.pid is not None:
            return diagnosis.of_process(held.pid)
        greenlet = getattr(pool, "_pool_map", {}).get(held.pid)
        return diagnosis.of_thread(held.lease.claim.tag, getattr(greenlet, "gr_frame", None))

    alone = kind(pool) == "prefork"
    return Pool(
        slots=lambda: int(pool.num_processes),
        running=_running_tags,
        alone=alone,
        diagnose=diagnose,
        end=ends.end,
        stopping=compat.is_stopping,
        stop=compat.stop_worker,
        leave=ends.leave,
    )


def _running_tags() -> set[str]:
    return {lease.tag for lease in _active_leases() if lease is not None}


def runs_plain_tasks() -> bool:
    """Whether a task without a lease runs in this worker."""
    return None in _active_leases()


def _active_leases() -> list[Any]:
    while True:
        with suppress(RuntimeError):  # the main loop changed it at the same time
            return [getattr(each, "lease", None) for each in state.active_requests]


def _frame_of_this(pool: Any) -> Callable[[], FrameType | None]:
    """Return how others find out what this thread, or this greenlet, is doing."""
    if pool.is_green:
        this: Any = import_module("greenlet").getcurrent()  # only there where it is needed
        return lambda: this.gr_frame
    thread = threading.get_ident()
    return lambda: sys._current_frames().get(thread)  # noqa: SLF001  (documented)


def _waits_for_broker(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(WAITS_FOR_BROKER):
            return True
        frame = frame.f_back
    return False


def kind(pool: Any) -> str:
    """Return the name of the module that a pool's class is from."""
    return type(pool).__module__.rpartition(".")[2]


def _end_task(pool: Any, pid: int | None, release: Callable[[], None]) -> bool:
    """End the task that a pool runs under *pid*: a process, or a greenlet's number.

    A process is gone before its message is released. A killed greenlet's task counts as a success
    in Celery's green pools, which would acknowledge: its message is released before.
    """
    name = kind(pool)
    gone = False
    if name == "prefork" and pid is not None:
        pool.terminate_job(pid, signal.SIGKILL)
        gone = is_gone(pid, DEATH)
    release()
    if name in {"gevent", "eventlet"} and pid is not None:
        pool.terminate_job(pid)
        gone = True
    return gone
