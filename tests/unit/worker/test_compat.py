"""What the worker parts rely on in Celery and kombu without a promise of theirs.

A release that changes one of these fails here, by name, rather than somewhere in a worker. Where it
can be, behaviour is checked, not the source.
"""

from __future__ import annotations

import inspect
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import celery
import pytest
from celery import Celery, Task, _state, bootsteps
from celery.backends.filesystem import FilesystemBackend
from celery.concurrency import prefork
from celery.exceptions import TaskRevokedError, WorkerShutdown, WorkerTerminate
from celery.platforms import EX_FAILURE, EX_OK
from celery.utils.timer2 import Timer as ThreadTimer
from celery.worker import WorkController, state
from celery.worker.consumer import Consumer
from celery.worker.consumer.consumer import Evloop
from celery.worker.consumer.tasks import Tasks
from celery.worker.request import Request, create_request_cls
from kombu.asynchronous.timer import Timer as LoopTimer
from kombu.exceptions import ContentDisallowed
from kombu.message import Message as BaseMessage
from kombu.serialization import dumps

from celery_lease import LeasedTask
from celery_lease.task.checkpoints.stores import FileStore, store_of
from celery_lease.worker import access, compat
from celery_lease.worker.entries import LeaseHandle
from celery_lease.worker.request import LeasedRequest
from celery_lease.worker.steps import LeaseConsumer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.compat


@pytest.fixture
def app() -> Iterator[Celery]:
    """Return an app of the test's own."""
    with Celery("compat", broker="memory://", set_as_current=False) as app:
        yield app


def parameters(function: Callable[..., object]) -> list[str]:
    """Return the names of a function's parameters, without self."""
    return [name for name in inspect.signature(function).parameters if name != "self"]


#: What kombu decodes here; MessagePack is an extra of its own.
SERIALIZERS = ["json", "pickle", "yaml", *(["msgpack"] if find_spec("msgpack") else [])]


def message_of_protocol_1(serializer: str) -> BaseMessage:
    """Return a task message as old clients and node-celery send it."""
    body = {"task": "proj.long", "id": "an id", "args": [], "kwargs": {}}
    content_type, encoding, text = dumps(body, serializer)
    return BaseMessage(text, content_type=content_type, content_encoding=encoding, headers={})


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_a_message_of_protocol_1_tells_its_task_in_each_accepted_content_type(
    app: Celery, serializer: str
) -> None:
    """Name and id are in its body, which kombu decodes for a consumer that accepts its type.

    Failed before, but for JSON, with: ``('', '', {}) == ('proj.long', 'an id', {})``.
    """
    app.conf.accept_content = ["json", serializer]
    message = message_of_protocol_1(serializer)
    assert compat.task_of(message, compat.accepted(app)) == ("proj.long", "an id", {})
    assert message.payload["task"] == "proj.long"  # decoded once, for Celery too


def test_a_content_type_that_is_not_accepted_is_not_decoded(app: Celery) -> None:
    """A pickle is a program; Celery rejects such a message, and so it has no lease."""
    app.conf.accept_content = ["json"]
    message = message_of_protocol_1("pickle")
    assert compat.task_of(message, compat.accepted(app)) == ("", "", {})
    with pytest.raises(ContentDisallowed):
        _ = message.payload


class FakePool:
    """Takes what a request hands to a pool."""

    def __init__(self) -> None:
        self.applied: list[dict[str, Any]] = []

    def apply_async(self, trace: object, **options: Any) -> None:
        self.applied.append({"trace": trace, **options})


class FakeLeases:
    """Takes what a leased request tells of its lease."""

    worker_id = "w1@host:1:abc"
    publishes = False

    def __init__(self, ticket: dict[str, Any] | None) -> None:
        self.ticket = ticket
        self.discarded: list[str] = []

    def start(self, _tag: str) -> dict[str, Any] | None:
        return self.ticket

    def discard(self, tag: str) -> None:
        self.discarded.append(tag)


def request_of(app: Celery, pool: FakePool, ticket: dict[str, Any] | None) -> LeasedRequest:
    """Make a request of a leased task as Celery's strategy does."""

    @app.task(name="t", base=LeasedTask, shared=False)
    def t() -> None: ...

    lease = LeaseHandle(FakeLeases(ticket), "tag")  # type: ignore[arg-type]
    message = SimpleNamespace(
        headers={"task": "t", "id": "id"},
        body=b"[[], {}, {}]",
        content_type="application/json",
        content_encoding="utf-8",
        delivery_info={"exchange": "", "routing_key": "celery"},
        properties={},
        delivery_tag="tag",
        acknowledged=False,
        lease=lease,
        ack_log_error=lambda *_: None,
        reject_log_error=lambda *_: None,
        payload=([], {}, {}),
    )
    task: Task[Any, Any] = app.tasks["t"]
    cls = create_request_cls(LeasedRequest, task, pool, "host", None, app=app)
    request = cls(
        message,
        on_ack=message.ack_log_error,
        on_reject=message.reject_log_error,
        app=app,
        hostname="host",
        task=task,
        body=message.body,
        headers=dict(message.headers),
        decoded=False,
    )
    assert isinstance(request, LeasedRequest)
    return request


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("on_accepted", ["pid", "time_accepted"]),
        ("on_timeout", ["soft", "timeout"]),
        ("on_failure", ["exc_info", "send_failed_event", "return_ok"]),
        ("acknowledge", []),
        ("reject", ["requeue"]),
        ("execute_using_pool", ["pool", "kwargs"]),
    ],
)
def test_the_request_s_methods_that_are_overridden_take_what_they_took(
    method: str, names: list[str]
) -> None:
    """Each is overridden with the same parameters."""
    assert parameters(getattr(Request, method)) == names
    assert parameters(getattr(LeasedRequest, method))[: len(names)] == names


def test_a_request_class_is_made_for_each_task_and_begins_the_lease(app: Celery) -> None:
    """The subclass that Celery makes hands over the request dict, ticket included, and callbacks
    that look up methods on the request.
    """
    pool = FakePool()
    request = request_of(app, pool, {"tag": "tag"})
    request.execute_using_pool(pool)
    (applied,) = pool.applied
    assert applied["args"][2]["delivery_info"]["lease"] == {"tag": "tag"}
    assert applied["accept_callback"] == request.on_accepted
    assert applied["timeout_callback"] == request.on_timeout
    assert applied["error_callback"] == request.on_failure
    assert applied["callback"] == request.on_success


def test_a_task_whose_lease_is_gone_is_not_given_to_the_pool(app: Celery) -> None:
    """The word for that is ``TaskRevokedError``, which the worker takes as an orderly end."""
    pool = FakePool()
    request = request_of(app, pool, None)
    released: list[bool] = []
    worker = SimpleNamespace(pool=pool, _quick_release=lambda: released.append(True))
    with pytest.raises(TaskRevokedError):
        request.execute_using_pool(pool)
    WorkController._process_task(worker, request)
    assert not pool.applied
    assert released == [True]


def test_a_request_that_is_ready_leaves_the_worker_s_lists(app: Celery) -> None:
    """Reserved, active and by id."""
    request = request_of(app, FakePool(), None)
    state.task_reserved(request)
    state.active_requests.add(request)
    compat.mark_ready(request)
    assert request not in state.reserved_requests
    assert request not in state.active_requests
    assert "id" not in state.requests


def test_a_worker_told_to_stop_stops_at_the_next_turn_of_its_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``should_stop`` is read by ``maybe_shutdown``; the loop calls that."""
    monkeypatch.setattr(state, "should_stop", None)
    assert not compat.is_stopping()
    compat.stop_worker()
    assert compat.is_stopping()
    with pytest.raises(WorkerShutdown) as stop:
        state.maybe_shutdown()
    assert stop.value.code == EX_FAILURE


@pytest.mark.parametrize("name", ["should_stop", "should_terminate"])
def test_both_ways_to_stop_are_seen_with_any_exit_status(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Zero is a status; False and None are none."""
    for value, stopping in ((EX_OK, True), (True, True), (False, False), (None, False)):
        monkeypatch.setattr(state, name, value)
        assert compat.is_stopping() is stopping
    monkeypatch.setattr(state, "should_terminate", EX_OK)
    with pytest.raises(WorkerTerminate):
        state.maybe_shutdown()


def test_a_consumer_has_what_the_step_asks_of_it(app: Celery) -> None:
    """Pool, timer, name and blueprint, before anything is connected."""
    pool, timer = SimpleNamespace(num_processes=1, is_green=False), object()
    worker = SimpleNamespace(semaphore=None, use_eventloop=False)
    consumer = Consumer(
        lambda _: None, app=app, pool=pool, timer=timer, hostname="w", controller=worker
    )
    assert (consumer.pool, consumer.timer, consumer.hostname) == (pool, timer, "w")
    assert consumer.app is app
    consumer.blueprint.state = bootsteps.RUN
    assert not compat.is_closing(consumer)
    consumer.blueprint.state = bootsteps.CLOSE
    assert compat.is_closing(consumer)


def test_consuming_starts_after_the_steps_and_the_channel_is_there_by_then() -> None:
    """``Tasks`` makes the task consumer; the event loop, always last, consumes."""
    assert Evloop.last is True
    assert LeaseConsumer.last is False
    # A blueprint that was built in this process has put the class in the place of its name.
    assert {str(each).replace(":", ".") for each in LeaseConsumer.requires} & {
        "celery.worker.consumer.tasks.Tasks",
        str(Tasks),
    }


def test_a_step_named_by_a_string_is_found_in_the_app_s_sets(app: Celery) -> None:
    """That is how leased tasks install the worker parts."""
    app.steps["consumer"].add("celery_lease.worker.steps:LeaseConsumer")
    app.steps["worker"].add("celery_lease.worker.steps:LeaseSettings")
    blueprint = bootsteps.Blueprint(app.steps["consumer"])
    assert LeaseConsumer in blueprint.claim_steps().values()


def test_steps_are_told_of_the_end_after_the_pool_is_empty() -> None:
    """The worker's ``on_stopped`` shuts the consumer down, which tells each step."""
    called: list[str] = []
    timer = SimpleNamespace(stop=lambda: called.append("timer"))
    consumer = SimpleNamespace(
        perform_pending_operations=lambda: called.append("operations"),
        steps=[SimpleNamespace(shutdown=lambda _: called.append("step"), name="s", alias="s")],
        blueprint=Consumer.Blueprint(),
    )
    consumer.shutdown = lambda: Consumer.shutdown(consumer)
    WorkController.on_stopped(SimpleNamespace(timer=timer, consumer=consumer, pidlock=None))
    assert called == ["timer", "operations", "step"]


def test_a_lost_connection_makes_the_pool_forget_what_nobody_accepted() -> None:
    """Before the steps stop; what the pool forgot goes back to its queue then."""
    flushed: list[bool] = []
    consumer = SimpleNamespace(
        controller=None,
        task_buckets={},
        timer=SimpleNamespace(clear=lambda: None, cancel=lambda _: None),
        pool=SimpleNamespace(flush=lambda: flushed.append(True)),
    )
    Consumer.on_close(consumer)
    assert flushed == [True]


@pytest.mark.parametrize("kind", [LoopTimer, ThreadTimer])
def test_a_repeated_call_can_be_ended(kind: type[Any]) -> None:
    """By the timer, with what it returned; the first call is made at once."""
    timer, calls = kind(), []
    end = compat.every(SimpleNamespace(timer=timer), 3600.0, lambda: calls.append(True))
    (entry,) = [each[2] if isinstance(each, tuple) else each for each in timer.queue]
    end()
    assert entry.canceled
    assert calls == [True]


def test_task_processes_die_with_the_main_process() -> None:
    """Celery asks Linux for that in each of them; the thread that forks them is the main one."""
    assert "set_pdeathsig" in prefork.process_initializer.__code__.co_names


def test_apps_to_come_are_told_of_a_shared_task() -> None:
    """``connect_on_app_finalize`` and the list of apps that are there already."""
    called: list[Celery] = []
    callbacks = set(_state._on_app_finalizers)
    try:
        _state.connect_on_app_finalize(called.append)
        app = Celery("shared", set_as_current=False)
        app.finalize()
    finally:
        _state._on_app_finalizers.intersection_update(callbacks)
    assert called == [app]
    assert app in set(_state._get_active_apps())
    assert callable(_state.get_current_app)


def test_a_request_that_was_refused_says_so_and_settles_itself() -> None:
    """``compat.refuse`` and ``compat.revoke_waiting`` rest on Celery's own revoking."""
    compat.refuse("refused")
    try:
        assert "refused" in state.revoked
        assert parameters(Request.revoked) == []
        assert parameters(Request._announce_revoked) == [
            "reason",
            "terminated",
            "signum",
            "expired",
        ]
    finally:
        state.revoked.clear()


def test_a_mailbox_of_our_own_sends_on_its_own_connection(app: Celery) -> None:
    """What another thread answers does not take from the app's pool of producers."""
    with app.connection_for_read() as connection:
        mailbox = compat.mailbox(app, connection)
        assert mailbox.connection is connection
        assert mailbox.producer_pool is None
        assert app.control.mailbox.producer_pool is not None
        assert mailbox.get_queue("w1@h.leases").name == "w1@h.leases.celery.pidbox"


def dispatcher_of(app: Celery, *groups: str, enabled: bool = True) -> Any:
    """Return a worker's dispatcher of events whose publications are kept in ``published``."""
    dispatcher = app.events.Dispatcher(
        app.connection_for_write(), hostname="w@host", enabled=enabled, groups=groups
    )
    dispatcher.published = []

    def publish(body: Any, routing_key: str, **_: Any) -> None:
        dispatcher.published.append((routing_key, body))

    dispatcher.producer = SimpleNamespace(publish=publish)
    return dispatcher


@pytest.mark.parametrize(
    ("groups", "enabled", "wanted"),
    [
        ((), True, True),  # celery worker -E
        (("worker",), True, False),  # without
        (("worker", "task"), True, True),  # enable_events, as monitors send it
        (("worker", "task"), False, False),
    ],
)
def test_events_of_leases_are_sent_to_who_wants_those_of_tasks(
    app: Celery, groups: tuple[str, ...], enabled: bool, wanted: bool
) -> None:
    """All in one message, which every receiver takes apart; each with its own time and type."""
    dispatcher = dispatcher_of(app, *groups, enabled=enabled)
    consumer: Any = SimpleNamespace(event_dispatcher=dispatcher)
    assert compat.wants_events(consumer) is wanted
    news = [("lease-granted", {"uuid": "1", "timestamp": 5.0}), ("lease-ended", {"timestamp": 6.0})]
    compat.send_events(consumer, news)
    if not wanted:
        assert dispatcher.published == []
        return
    ((key, body),) = dispatcher.published
    assert key == "lease.multi"
    assert [event["type"] for event in body] == ["lease-granted", "lease-ended"]
    heard: list[dict[str, Any]] = []
    state = app.events.State()
    receiver = app.events.Receiver(
        app.connection_for_read(),
        handlers={"*": lambda event: [state.event(event), heard.append(event)]},
    )
    receiver._receive(body, None)
    assert [event["timestamp"] for event in heard] == [5.0, 6.0]
    assert all(event["hostname"] == "w@host" for event in heard)
    assert state.event_count == 2
    assert state.task_count == 0  # they are no states of a task


def test_without_a_dispatcher_no_events_are_sent() -> None:
    """As between two connections."""
    consumer: Any = SimpleNamespace(event_dispatcher=None)
    compat.send_events(consumer, [("lease-granted", {})])
    assert not compat.wants_events(consumer)


def test_a_backend_for_progress_is_the_publishers_own_and_gives_up_early() -> None:
    """Not the app's, which children inherit; one try, two seconds, and no retry on top."""
    app = Celery("own", backend="redis://127.0.0.1:1/0", set_as_current=False)
    tries: list[tuple[Any, ...]] = []

    class Backend(type(app.backend)):  # type: ignore[misc]
        def _set(self, key: str, value: bytes, expires: float | None = None) -> None:
            tries.append((self, key, value, expires))
            raise ConnectionError

        def _get_task_meta_for(self, _task_id: str) -> dict[str, str]:
            return {"status": "PENDING"}

    app._get_backend = lambda: Backend(app=app, url=app.conf.result_backend)
    with pytest.raises(ConnectionError):
        compat.progress_store(app)("t", "1", {"done": 1})
    ((backend, key, value, _),) = tries
    assert backend is not app.backend
    assert backend.connparams["socket_timeout"] == compat.BACKEND_TIMEOUT
    assert b'"status": "PROGRESS"' in (value if isinstance(value, bytes) else value.encode())
    assert "1" in str(key)


def test_a_lost_process_s_retry_is_told_before_its_hook() -> None:
    """5.7 can retry such a task: ``on_retry`` comes when all else is done."""
    method = getattr(Request, "_retry_worker_lost", None)
    assert (method is not None) == (celery.VERSION >= (5, 7))
    if method is not None:
        source = inspect.getsource(method)
        calls = ("apply_async", "mark_as_retry", "acknowledge", "task-retried", "task.on_retry")
        places = [source.index(each) for each in calls]
        assert places == sorted(places)


def test_a_request_is_given_to_a_backend_as_celery_itself_does(app: Celery) -> None:
    """Name, arguments, worker and queue are what Celery's own context of it says."""
    headers = {"id": "1", "task": "t", "retries": 2, "reply_to": "r", "correlation_id": "1"}
    message = SimpleNamespace(
        headers=headers,
        properties={"reply_to": "r", "correlation_id": "1"},
        delivery_info={"routing_key": "q", "exchange": ""},
        body=b"",
        payload=((1, 2), {"a": 3}, {"chain": None}),
        content_type="application/json",
        content_encoding="utf-8",
        errors=None,
    )

    @app.task(name="t")
    def t() -> None: ...

    request = Request(message, app=app, hostname="w1@h", task=t)
    context, own = compat.context_of(request), request._context
    names = ("id", "task", "args", "kwargs", "hostname", "retries", "reply_to", "correlation_id")
    assert {name: getattr(context, name) for name in names} == {
        name: getattr(own, name) for name in names
    }
    assert (context.args, context.kwargs, context.hostname) == ((1, 2), {"a": 3}, "w1@h")
    assert context.delivery_info["routing_key"] == "q"


def test_without_redis_py_a_worker_starts_and_finds_its_stores(
    app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on RabbitMQ, where Celery's module of the backend on Redis cannot be imported."""
    monkeypatch.delitem(sys.modules, "celery.backends.redis", raising=False)
    monkeypatch.setitem(sys.modules, "redis", None)
    assert access._lacking_at_results(app) is None
    assert isinstance(store_of(app, FilesystemBackend(f"file://{tmp_path}", app=app)), FileStore)
