"""Every use of a Celery internal that the worker parts make.

But :mod:`.stops`, :mod:`.foreign` and :mod:`.places`.

Read in Celery 5.5.3 and 5.7.0; ``tests/unit/test_compat.py`` notices when one of them changes.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.apps.worker import Worker
from celery.platforms import EX_FAILURE
from celery.utils import log
from celery.worker import state
from celery.worker.request import Request
from kombu.common import ignore_errors

from celery_lease.worker import diagnosis
from celery_lease.worker.processes import is_gone

if TYPE_CHECKING:
    from types import FrameType

    from celery.worker import WorkController
    from celery.worker.consumer import Consumer

    from celery_lease.worker.held import Held

logger = logging.getLogger(__name__)

#: Modules that wait for the broker while a worker closes; under gevent and eventlet the latter two
#: for a greenlet that does.
WAITS_FOR_BROKER = ("kombu.transport.", "amqp.", "celery.worker.pidbox", "celery.events.")
#: Seconds that a killed process is given to be gone.
DEATH = 1.0
#: Seconds that a result backend has to take a publication of progress.
BACKEND_TIMEOUT = 2.0


def task_of(message: Any) -> tuple[str, str, Mapping[str, object]]:
    """Return name, id and lease options of a task message, of protocol 2 or 1; else blanks.

    A message that cannot be read is nobody's leased task: Celery deals with it as it always does.
    """
    headers = message.headers
    if not isinstance(headers, Mapping):
        return "", "", {}
    facts: Any = headers
    if "task" not in headers:
        try:
            facts = message.payload
            facts["task"], facts["id"]
        except Exception:  # noqa: BLE001  (decoding a foreign body may raise anything)
            return "", "", {}
    name, options = facts["task"], headers.get("lease")
    return (
        name if isinstance(name, str) else "",
        str(facts.get("id", "")),
        options if isinstance(options, Mapping) else {},
    )


def mark_ready(request: Any) -> None:
    """Take a request out of the worker's lists of reserved and active ones."""
    state.task_ready(request)


def forget_requests(is_gone: Callable[[Any], bool]) -> None:
    """Forget the requests that wait although their lease is gone, and free their places.

    Rate limits and countdowns would keep a place in the prefetch window for as long as they last.
    The request itself stays with its timer, bucket or pool, and is not let in when its time comes.
    """
    scheduled = getattr(state, "scheduled_requests", ())  # 5.5 has no list of them
    for request in {*state.reserved_requests, *scheduled}:
        lease = getattr(request, "lease", None)
        if lease is not None and not request.acknowledged and is_gone(lease):
            mark_ready(request)
            Request.acknowledge(request)


def refuse(task_id: str) -> None:
    """Let this worker start no task of that id for the next hours, as Celery's revoke does."""
    state.revoked.add(task_id)


def revoke_waiting(consumer: Consumer, tag: str) -> bool:
    """Revoke the request of a lease that waits for its time; for the main loop's thread.

    Celery revokes a refused request when its time comes; this does so now, with everything that
    belongs to it: result, chord, event, signal, acknowledgement.
    """
    for request in {*state.reserved_requests, *_scheduled(consumer)}:
        lease = getattr(request, "lease", None)
        if lease is not None and lease.tag == tag:
            return bool(request.revoked())
    return False


def _scheduled(consumer: Consumer) -> set[Request]:
    """Return the requests that wait for their ETA, as Celery's own ``inspect scheduled`` does."""
    queue: Any = consumer.timer.schedule.queue
    first = [each.entry.args[0] for each in queue if each.entry.args]
    return {each for each in first if isinstance(each, Request)}


def plain_tasks(task_ids: Iterable[str]) -> list[str]:
    """Return which of some tasks run here without a lease."""
    while True:
        with suppress(RuntimeError):  # the main loop changed it at the same time
            active = {each.id: getattr(each, "lease", None) for each in state.active_requests}
            return [each for each in task_ids if each in active and active[each] is None]


def takes_commands(consumer: Consumer) -> bool:
    """Whether this worker is to answer remote control commands, and its broker carries them."""
    wanted = bool(consumer.app.conf.worker_enable_remote_control)
    connection: Any = consumer.connection
    return wanted and bool(connection.supports_exchange_type("fanout"))


def mailbox(app: Any, connection: Any) -> Any:
    """Return the app's mailbox on a *connection*, also for what it sends."""
    bound = app.control.mailbox(connection)
    bound._producer_pool = None  # noqa: SLF001  (the app's pool belongs to other threads)
    return bound


def channel_of_its_own(connection: Any) -> Any:
    """Open a channel for a thread beside the main loop's.

    Kombu's Redis channels share one table of fanout queues, which breaks when one closes while
    another one, elsewhere, declares.
    """
    channel = connection.channel()
    if hasattr(channel, "_fanout_queues"):
        channel._fanout_queues = {}  # noqa: SLF001
    return channel


def progress_store(app: Any) -> Callable[[str, str, dict[str, Any]], None]:
    """Return what stores a task's progress, by a result backend of the caller's own.

    Celery's is the main thread's, and forked children inherit what it has locked. It gives up early
    rather than try again, for a task may wait for it; so it must not wait for long either.
    """

    def store(name: str, task_id: str, told: dict[str, Any]) -> None:
        task = app.tasks.get(name)
        backend = getattr(task, "_backend", None) or own()
        backend.store_result(task_id, told, "PROGRESS")

    @cache
    def own() -> Any:
        backend = app._get_backend()  # noqa: SLF001
        backend.always_retry = False
        if hasattr(backend, "connparams"):  # Redis: else it waits for two minutes, twenty times
            bounds = {"socket_timeout": BACKEND_TIMEOUT, "socket_connect_timeout": BACKEND_TIMEOUT}
            backend.connparams.update(bounds)
            backend.ensure = lambda function, args, **_: function(*args)
        return backend

    return store


def stop_worker() -> None:
    """Make the worker's main loop shut down warmly and exit with a failure."""
    state.should_stop = EX_FAILURE  # type: ignore[assignment]


def forks_its_pool(worker: WorkController) -> bool:
    """Whether this process is a worker's own, and its pool one of processes."""
    pool: type = worker.pool_cls  # type: ignore[attr-defined]
    return isinstance(worker, Worker) and pool.__module__ == "celery.concurrency.prefork"


def is_solo(consumer: Consumer) -> bool:
    """Whether tasks run inside the worker's main loop, which stands still meanwhile."""
    return type(consumer.pool).__module__ == "celery.concurrency.solo"


def stop_consuming(consumer: Consumer) -> None:
    """Ask the broker for no more tasks; Celery does so again a moment later, without effect.

    One that does not answer is left to itself, as Celery does: what it gives out goes back.
    """
    ignore_errors(consumer, consumer.task_consumer.cancel)  # type: ignore[arg-type, attr-defined]


def channel_of(consumer: Consumer) -> Any:
    """Return the channel on which the worker consumes tasks."""
    return consumer.task_consumer.channel  # type: ignore[attr-defined]


def is_closing(consumer: Consumer) -> bool:
    """Whether the worker is stopping, rather than reconnecting."""
    return bool(consumer.blueprint.state != bootsteps.RUN)  # type: ignore[attr-defined]


def is_stopping() -> bool:
    """Whether this process was told to stop, though its main loop may not know yet."""
    return any(
        code is not None and code is not False
        for code in (state.should_stop, state.should_terminate)
    )


def every(consumer: Consumer, seconds: float, call: Any) -> Callable[[], None]:
    """Call *call* now, and again while the main loop turns; return what ends that."""
    call()
    entry = consumer.timer.call_repeatedly(seconds, call)
    # Not by the entry itself: green timers have to catch what that raises in them.
    return lambda: consumer.timer.cancel(entry)


def in_signal_handler() -> bool:
    """Whether one of Celery's own signal handlers runs: a cold shutdown works inside of one."""
    return bool(log._in_sighandler)  # type: ignore[attr-defined]  # noqa: SLF001


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
        stopping=is_stopping,
        stop=stop_worker,
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


def wants_events(consumer: Consumer) -> bool:
    """Whether the worker sends events of tasks: by its ``-E``, or because a monitor asked it to."""
    dispatcher = consumer.event_dispatcher  # type: ignore[attr-defined]
    if dispatcher is None or not dispatcher.enabled:
        return False
    return not dispatcher.groups or "task" in dispatcher.groups


def send_events(consumer: Consumer, events: Sequence[tuple[str, Mapping[str, object]]]) -> None:
    """Send Celery events in one message, if any are wanted; for the main loop, whose line it is.

    Past the dispatcher's ``send``, which knows groups by their names: who asked for events of tasks
    gets those of leases too.
    """

    def all_of_them(_: str, **common: object) -> list[dict[str, object]]:
        return [{**common, **fields, "type": kind} for kind, fields in events]

    if events and wants_events(consumer):
        dispatcher = consumer.event_dispatcher  # type: ignore[attr-defined]
        dispatcher.publish("lease-multi", {}, dispatcher.producer, Event=all_of_them)


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
