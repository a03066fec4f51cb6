"""Every use of a Celery internal that the worker parts make: here, and in this package's modules.

Read in Celery 5.5.3 and 5.7.0; for each module a test, ``tests/unit/test_compat.py`` and the like,
notices when something it relies on changes.

* here: messages, requests, remote control, events, how a worker stops
* :mod:`.pools`: what a pool is and runs, and how it ends a task
* :mod:`.stops`: cold and soft shutdowns made harmless
* :mod:`.reconnects`: a lost connection made harmless to what runs
* :mod:`.foreign`: malformed messages that would end the worker
* :mod:`.places`: long lines of requests that are not let in
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.platforms import EX_FAILURE
from celery.utils import log
from celery.worker import state
from celery.worker.request import Request
from kombu.common import ignore_errors

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

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
