"""Uses of Celery's internals by the worker's parts, in one place.

Read in Celery 5.5.3 and 5.7.0; for each module a test, as ``tests/unit/worker/test_compat.py``,
notices when something it relies on changes.

* here: messages, requests, remote control, events, how a worker stops
* :mod:`celery_lease.worker.pools`: what a pool is and runs, and how it ends a task
* :mod:`celery_lease.worker.shutdown_patches`: cold and soft shutdowns made harmless
* :mod:`celery_lease.celery_patches`: repairs of Celery and kombu, with or without leases
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from time import time  # noqa: TID251  (Celery compares with it)
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.app.task import Context
from celery.platforms import EX_FAILURE
from celery.utils import log
from celery.worker import state
from celery.worker.request import Request
from kombu.common import ignore_errors
from kombu.serialization import prepare_accept_content

from celery_lease.celery_patches.cut_connections import forget_connections
from celery_lease.core.secrets import address_of
from celery_lease.task import mapping

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

#: Seconds that a result backend has to take a publication of progress, or to answer a command.
BACKEND_TIMEOUT = 2.0


def accepted(app: Any) -> frozenset[str] | None:
    """Return the content types of messages that the worker of an *app* accepts."""
    types = prepare_accept_content(app.conf.accept_content)
    return None if types is None else frozenset(types)


def task_of(
    message: Any, accept: frozenset[str] | None = None
) -> tuple[str, str, Mapping[str, object]]:
    """Return name, id and lease options of a task message (protocol 2 or 1); of others "", "", {}.

    Protocol 1 has name and id in the body. kombu decodes pickle, YAML and MessagePack only if the
    message's ``accept`` allows it. The consumer has not set that yet: *accept* is its value.

    A message that cannot be read is no leased task; Celery handles it as usual.
    """
    headers = message.headers
    if not isinstance(headers, dict):
        return "", "", {}
    facts: Any = headers
    if "task" not in headers:
        try:
            message.accept = message.accept or accept
            facts = message.payload
            facts["task"], facts["id"]
        except Exception:  # noqa: BLE001  (decoding a foreign body may raise anything)
            return "", "", {}
    name, options = facts["task"], headers.get("lease")
    if isinstance(name, str) and name in mapping.NAMES:  # its rules are those of the inner task
        name = headers.get(mapping.INNER) or name
    return (
        name if isinstance(name, str) else "",
        str(facts.get("id", "")),
        options if options and isinstance(options, Mapping) else {},
    )


def facts_of(message: Any) -> Mapping[str, Any]:
    """Return ``task``, ``eta``, ``expires``, ``retries`` and the like of a message.

    :func:`task_of` has read it, and with it the body of a message of Celery's first protocol.
    """
    facts: Mapping[str, Any] = message.headers if "task" in message.headers else message.payload
    return facts


def arguments_of(
    message: Any, accept: frozenset[str] | None = None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the positional and keyword arguments of a message that :func:`task_of` has read.

    Of a body that cannot be read there are none; Celery refuses it.
    """
    try:
        message.accept = message.accept or accept
        body = message.payload
        if "task" not in message.headers:
            return body.get("args") or (), body.get("kwargs") or {}
        args, kwargs, _ = body
    except Exception:  # noqa: BLE001  (decoding a foreign body may raise anything)
        return (), {}
    return args, kwargs


def is_refused(task_id: str, expires: float | None = None) -> bool:
    """Whether this worker revokes a task when it gets it; *expires*: seconds since 1970."""
    return task_id in state.revoked or (expires is not None and expires <= time())


def mark_ready(request: Any) -> None:
    """Remove a request from the worker's lists of reserved and active requests."""
    state.task_ready(request)


def forget_requests(is_gone: Callable[[Any], bool]) -> None:
    """Forget reserved requests whose lease is gone, and free their places in the prefetch window.

    Rate limits and countdowns would keep those places for as long as they last. The request itself
    stays with its timer, bucket or pool, and is refused when its time comes.
    """
    scheduled = getattr(state, "scheduled_requests", ())  # 5.5 has no list of them
    for request in {*state.reserved_requests, *scheduled}:
        lease = getattr(request, "lease", None)
        if lease is not None and not request.acknowledged and is_gone(lease):
            mark_ready(request)
            Request.acknowledge(request)


def refuse(task_id: str) -> None:
    """Mark a task id as revoked in this worker, as Celery's revoke does: it does not start here."""
    state.revoked.add(task_id)


def withdraw_plain(consumer: Consumer, message: Any) -> bool:
    """Prevent the start of a plain message's task; False: it has started, or its pool has it.

    Celery does not start a request that is marked as expired and as already revoked, and stores
    and sends nothing about it.
    """
    requests: list[Any] = []
    while not requests:
        with suppress(RuntimeError):  # the main loop changed one of them at the same time
            requests = [None, *state.reserved_requests, *_scheduled(consumer)]
    for request in requests[1:]:
        if request.message is not message:
            continue
        if request in state.active_requests or request._apply_result is not None:  # noqa: SLF001
            return False
        request._already_revoked, request.expires = True, True  # noqa: SLF001
        mark_ready(request)
        return True
    return False


def revoke_waiting(consumer: Consumer, tag: str) -> bool:
    """Revoke a leased request that waits for its time. For the main loop's thread.

    Celery revokes a refused request when its time comes; this does so now, with result, chord,
    event, signal and acknowledgement.
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
    """Return the *task_ids* of tasks that run here without a lease."""
    while True:
        with suppress(RuntimeError):  # the main loop changed it at the same time
            active = {each.id: getattr(each, "lease", None) for each in state.active_requests}
            return [each for each in task_ids if each in active and active[each] is None]


def takes_commands(consumer: Consumer) -> bool:
    """Whether this worker answers remote control commands, and its broker can carry them."""
    wanted = bool(consumer.app.conf.worker_enable_remote_control)
    connection: Any = consumer.connection
    return wanted and bool(connection.supports_exchange_type("fanout"))


def mailbox(app: Any, connection: Any) -> Any:
    """Return the app's mailbox on a *connection*, which also sends by that connection."""
    bound = app.control.mailbox(connection)
    bound._producer_pool = None  # noqa: SLF001  (the app's pool belongs to other threads)
    return bound


def context_of(request: Request) -> Context:
    """Return a request's context for a result backend, which stores its name, arguments, worker.

    From a copy: another thread may call this, and ``Request._context`` adds to the dict that
    goes to the pool.
    """
    return Context(dict(request.request_dict))


def progress_store(app: Any) -> Callable[..., None]:
    """Return a function that stores a task's progress, by a result backend of its own.

    Celery's backend belongs to the main thread, and forked children inherit its locks. The end of a
    task may wait for this one.
    """

    def store(
        name: str, task_id: str, progress: dict[str, Any], request: Request | None = None
    ) -> None:
        task = app.tasks.get(name)
        backend = getattr(task, "_backend", None) or own(app)
        context = None if request is None else context_of(request)
        try:
            backend.store_result(task_id, progress, "PROGRESS", request=context)
        except Exception:
            forget_connections(backend)
            raise

    own = cache(hasty_backend)
    return store


def hasty_backend(app: Any) -> Any:
    """Return a new result backend of an app that fails early, and does not retry."""
    backend = app._get_backend()  # noqa: SLF001
    backend.always_retry = False
    if hasattr(backend, "connparams"):  # Redis: its defaults wait for two minutes, twenty times
        bounds = {"socket_timeout": BACKEND_TIMEOUT, "socket_connect_timeout": BACKEND_TIMEOUT}
        backend.connparams.update(bounds)
        backend.ensure = lambda function, args, **_: function(*args)
    elif hasattr(backend, "destination_for"):  # RPC: twenty times, up to a second apart
        backend.retry_policy = {**backend.retry_policy, "max_retries": 1}
    return backend


def stop_worker() -> None:
    """Make the worker's main loop shut down warmly and exit with a failure."""
    state.should_stop = EX_FAILURE  # type: ignore[assignment]


def stop_consuming(consumer: Consumer) -> None:
    """Stop consuming tasks at the broker; Celery does so again a moment later, without effect.

    If the broker does not answer, the error is ignored, as in Celery: later deliveries go back.
    """
    ignore_errors(consumer, consumer.task_consumer.cancel)  # type: ignore[arg-type, attr-defined]


def channel_of(consumer: Consumer) -> Any:
    """Return the channel on which the worker consumes tasks."""
    return consumer.task_consumer.channel  # type: ignore[attr-defined]


def broker_of(consumer: Consumer) -> str:
    """Return the URL of the worker's broker, without its password."""
    return address_of(consumer.connection) if consumer.connection else "?"


def is_closing(consumer: Consumer) -> bool:
    """Whether the worker is stopping, rather than reconnecting."""
    return bool(consumer.blueprint.state != bootsteps.RUN)  # type: ignore[attr-defined]


def is_stopping() -> bool:
    """Whether this process was asked to stop, though its main loop may not know yet."""
    return any(
        code is not None and code is not False
        for code in (state.should_stop, state.should_terminate)
    )


def every(consumer: Consumer, seconds: float, call: Any) -> Callable[[], None]:
    """Call *call* in the main loop, now and every *seconds*; return a function that stops this."""
    call()
    entry = consumer.timer.call_repeatedly(seconds, call)
    # Not by the entry's own cancel(): green timers have to catch the errors that it raises.
    return lambda: consumer.timer.cancel(entry)


def has_loop(consumer: Consumer) -> bool:
    """Whether the worker has an event loop, whose timers run in it."""
    return consumer.hub is not None  # type: ignore[attr-defined]


def call_in_loop(consumer: Consumer, call: Callable[..., object], *args: object) -> None:
    """Call in the event loop, if there is one: an error ends the loop; a timer would hide it."""
    if has_loop(consumer):
        consumer.hub.call_soon(call, *args)  # type: ignore[attr-defined]


def in_signal_handler() -> bool:
    """Whether one of Celery's signal handlers runs: it does its cold shutdown in one."""
    return bool(log._in_sighandler)  # type: ignore[attr-defined]  # noqa: SLF001


def wants_events(consumer: Consumer) -> bool:
    """Whether the worker sends task events: by ``-E``, or by a monitor's request."""
    dispatcher = consumer.event_dispatcher  # type: ignore[attr-defined]
    if dispatcher is None or not dispatcher.enabled:
        return False
    return not dispatcher.groups or "task" in dispatcher.groups


def events_used(consumer: Consumer) -> tuple[bool, bool]:
    """Return whether the worker sends events of any kind, and whether it follows its peers'."""
    dispatcher = getattr(consumer, "event_dispatcher", None)
    gossips = bool(getattr(getattr(consumer, "gossip", None), "enabled", False))
    return gossips or (dispatcher is not None and bool(dispatcher.enabled)), gossips


def send_events(consumer: Consumer, events: Sequence[tuple[str, Mapping[str, object]]]) -> None:
    """Send Celery events in one message, if they are wanted. For the main loop's thread.

    This bypasses the dispatcher's ``send``, which knows groups by name: a monitor that asked for
    task events gets lease events, too.
    """

    def all_of_them(_: str, **common: object) -> list[dict[str, object]]:
        return [{**common, **fields, "type": kind} for kind, fields in events]

    if events and wants_events(consumer):
        dispatcher = consumer.event_dispatcher  # type: ignore[attr-defined]
        dispatcher.publish("lease-multi", {}, dispatcher.producer, Event=all_of_them)
