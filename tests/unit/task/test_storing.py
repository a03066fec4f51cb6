"""One run from its acceptance to its stored outcome, by Celery's own tracer: hooks and storing."""

from __future__ import annotations

import sqlite3
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery, signals, states
from celery.app.trace import build_tracer, trace_task
from celery.exceptions import BackendStoreError, Ignore, Reject, SoftTimeLimitExceeded
from kombu.exceptions import EncodeError, OperationalError

from celery_lease import LeasedTask, LeaseLost, ShutdownRequested, ToolContext, current_context
from celery_lease.board import Outcome, spans
from celery_lease.board.spans import Span
from celery_lease.core.loss import FLAG_CANCELLED, FLAG_MAX_DURATION, FLAG_OUT_OF_TIME
from celery_lease.task.outcome import Cancelled, Discarded, HandedOver, NotStored
from celery_lease.task.storing import GivenUp, guard, may_pass
from unit.leased_runs import Delivery, leased, sent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery.backends.redis import RedisBackend


def outcome_of(delivery: Delivery) -> Outcome:
    """Return what the main process reads."""
    return delivery.board.read_outcome(delivery.slot)


def span(delivery: Delivery) -> Span:
    return spans.current(delivery.board, delivery.slot)


@pytest.fixture
def receivers() -> Iterator[Callable[[str, Callable[..., Any]], None]]:
    """Connect receivers of Celery's signals for one test."""
    connected: list[tuple[Any, Any]] = []

    def connect(name: str, receiver: Callable[..., Any]) -> None:
        getattr(signals, name).connect(receiver, weak=False)
        connected.append((getattr(signals, name), receiver))

    yield connect
    for signal, receiver in connected:
        signal.disconnect(receiver)


# The spans.


def test_the_context_is_there_from_the_first_signal_to_the_last(
    app: Celery, delivery: Delivery, receivers: Callable[..., None]
) -> None:
    """Leased until the outcome is stored; beats count until then, and are allowed afterwards."""
    seen: list[tuple[str, str, bool, Outcome]] = []

    def see(name: str) -> None:
        context = current_context()
        context.beat(note=name)
        seen.append((name, span(delivery).name, context.leased, outcome_of(delivery)))
        assert (context.task_id, context.fencing_token) == (delivery.task_id, 7)

    class Hooked(LeasedTask):
        abstract = True

        def before_start(self, *_: Any) -> None:
            see("before_start")

        def on_success(self, *_: Any) -> None:
            delivery.taken()  # the main process has settled the message
            see("on_success")

        def after_return(self, *_: Any) -> None:
            see("after_return")

    @leased(app, base=Hooked)
    def task() -> None:
        see("body")

    for name in ("task_prerun", "task_success", "task_postrun"):
        receivers(name, lambda name=name, **_: see(name))
    delivery.trace(task)
    done = Outcome.DONE
    assert seen == [
        ("task_prerun", "STARTING", True, Outcome.UNREPORTED),
        ("before_start", "STARTING", True, Outcome.UNREPORTED),
        ("body", "BODY", True, Outcome.UNREPORTED),
        ("on_success", "STORING", False, done),
        ("task_success", "STORING", False, done),
        ("after_return", "STORING", False, done),
        ("task_postrun", "STORING", False, done),
    ]
    assert delivery.board.read_progress(delivery.slot).note == "body"


@pytest.mark.parametrize("beats", [True, False])
def test_a_run_tells_whether_its_body_beat(
    app: Celery, delivery: Delivery, receivers: Callable[..., None], *, beats: bool
) -> None:
    """Hooks do not count, nor does the beat with which a body begins."""

    @leased(app)
    def task() -> None:
        time.sleep(0.001)  # the board's times are rounded
        if beats:
            current_context().beat()

    receivers("task_prerun", lambda **_: current_context().beat())
    receivers("task_success", lambda **_: current_context().beat())
    delivery.trace(task)
    assert spans.has_beaten(delivery.board, delivery.slot) is beats
    assert span(delivery) is Span.STORING


@pytest.mark.parametrize(
    ("raised", "end", "options"),
    [
        (None, (states.SUCCESS, Outcome.DONE), {}),
        (ValueError, (states.FAILURE, Outcome.DONE), {}),
        (ValueError, (states.FAILURE, Outcome.REJECTED), {"acks_on_failure_or_timeout": False}),
        (Ignore, (states.PENDING, Outcome.DONE), {}),
        (Reject, (states.PENDING, Outcome.UNREPORTED), {}),
        (None, (states.PENDING, Outcome.DONE), {"ignore_result": True}),
        (ValueError, (states.PENDING, Outcome.DONE), {"ignore_result": True}),
    ],
)
def test_how_a_run_ended_is_told_before_its_hooks(
    app: Celery, delivery: Delivery, raised: Any, end: tuple[str, Outcome], options: Any
) -> None:
    """A rejection is Celery's main process's to store and to settle."""
    seen: list[Outcome] = []

    class Hooked(LeasedTask):
        abstract = True

        def on_success(self, *_: Any) -> None:
            seen.append(outcome_of(delivery))

        on_failure = on_success

    @leased(app, base=Hooked, **options)
    def task() -> None:
        if raised is not None:
            raise raised

    delivery.trace(task)
    assert (delivery.state(task), outcome_of(delivery)) == end
    assert seen == ([] if raised in (Ignore, Reject) else [end[1]])


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("automatic", [False, True])
def test_a_retry_is_told_before_its_hook(
    app: Celery, delivery: Delivery, *, ignored: bool, automatic: bool
) -> None:
    """The next message is at the broker, and that is what came of the run."""
    seen: list[Outcome] = []

    class Hooked(LeasedTask):
        abstract = True

        def on_retry(self, *_: Any) -> None:
            seen.append(outcome_of(delivery))

    options: Any = {"autoretry_for": (ValueError,)} if automatic else {}

    @leased(app, base=Hooked, bind=True, ignore_result=ignored, **options)
    def task(self: Any) -> None:
        if automatic:
            raise ValueError
        raise self.retry()

    delivery.trace(task)
    assert seen == [Outcome.DONE]
    assert len(sent(app)) == 1


@pytest.mark.parametrize(
    ("flag", "error", "end"),
    [
        (None, LeaseLost, (Discarded, Outcome.DISCARDED)),
        (None, ShutdownRequested, (HandedOver, Outcome.HANDED_OVER)),
        (FLAG_CANCELLED, None, (Cancelled, Outcome.DONE)),
    ],
)
def test_a_hook_before_the_body_may_end_the_run(
    app: Celery, delivery: Delivery, flag: int | None, error: Any, end: tuple[Any, Outcome]
) -> None:
    """As the body may: no failure of the task, and nothing stored that its next run would lose."""

    class Hooked(LeasedTask):
        abstract = True

        def before_start(self, *_: Any) -> None:
            if flag is not None:
                delivery.board.flag(delivery.slot, flag)
            current_context().beat()
            raise error

    @leased(app, base=Hooked)
    def task() -> None:
        raise AssertionError("not reached")

    void, outcome = end
    assert isinstance(delivery.trace(task).info.retval, void)
    assert outcome_of(delivery) is outcome
    assert delivery.state(task) == (states.REVOKED if flag else states.PENDING)


def test_a_run_that_lost_its_lease_before_it_began_calls_no_hook(
    app: Celery, delivery: Delivery, receivers: Callable[..., None]
) -> None:
    """It is none."""
    called: list[str] = []
    receivers("task_prerun", lambda **_: called.append("prerun"))
    receivers("task_postrun", lambda **_: called.append("postrun"))

    @leased(app)
    def task() -> None:
        called.append("body")

    delivery.taken()
    assert isinstance(delivery.trace(task).info.retval, Discarded)
    assert called == []


def test_every_pool_sets_the_tracer_by_one_name(app: Celery, delivery: Delivery) -> None:
    """Celery's: ``task.__trace__``, made by ``build_tracer`` if no pool did; called with a dict."""
    seen: list[bool] = []

    @leased(app)
    def task(*, context: ToolContext) -> None:
        seen.append(context.leased)

    assert task.__trace__ is None
    request = {"delivery_info": {"lease": delivery.ticket}}
    result = trace_task(task, delivery.task_id, (), {}, request, app=app)
    assert result._fields == ("retval", "info", "runtime", "retstr")
    assert (result.info, seen) == (None, [True])
    assert task.__trace__.__wrapped__.__code__ is build_tracer("t", task, app=app).__code__


# Storing.


class Away:
    """A backend's server that is away for some calls."""

    def __init__(self, backend: Any, times: int, error: Any = None) -> None:
        self.store, self.times = backend._store_result, times
        self.error = error or OSError("away")
        self.seen: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None
        backend._store_result = self

    def __call__(self, task_id: str, result: Any, state: str, *args: Any, **options: Any) -> Any:
        self.seen.append(state)
        self.meanwhile()
        if self.times:
            self.times -= 1
            raise self.error
        return self.store(task_id, result, state, *args, **options)


@pytest.mark.parametrize("end", ["return", "raise"])
def test_an_outcome_is_stored_by_as_many_tries_as_it_takes(
    app: Celery, delivery: Delivery, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    """With one line; told as done after the last of them, and shown as being stored before."""

    @leased(app)
    def task() -> str:
        if end == "raise":
            raise ValueError
        return "done"

    away = Away(task.backend, 3)
    shown: list[tuple[Span, Outcome]] = []
    away.meanwhile = lambda: shown.append((span(delivery), outcome_of(delivery)))
    delivery.trace(task)
    assert delivery.state(task) == (states.FAILURE if end == "raise" else states.SUCCESS)
    unreported = Outcome.UNREPORTED
    assert shown == [(Span.STORING, unreported), *[(Span.RETRYING, unreported)] * 3]
    assert outcome_of(delivery) is Outcome.DONE
    assert caplog.text.count("the result backend does not store that (OSError: away)") == 1


def test_a_retry_does_not_wait_for_its_state(
    app: Celery, delivery: Delivery, caplog: pytest.LogCaptureFixture
) -> None:
    """It would come after that of the next run, which is on its way."""

    @leased(app, bind=True)
    def task(self: Any) -> None:
        raise self.retry()

    away = Away(task.backend, 99)
    delivery.trace(task)
    assert away.seen == [states.RETRY]
    assert outcome_of(delivery) is Outcome.DONE
    assert "is retried, but the result backend does not store that" in caplog.text


@pytest.mark.parametrize(
    ("end", "outcome", "void"),
    [
        ("taken", Outcome.DISCARDED, Discarded),
        ("out of time", Outcome.NOT_STORED, NotStored),
        ("too long", Outcome.NOT_STORED, NotStored),
    ],
)
@pytest.mark.parametrize("always", [False, True])
def test_what_cannot_be_stored_in_time_is_stored_no_more(
    app: Celery, delivery: Delivery, end: str, outcome: Outcome, void: Any, *, always: bool
) -> None:
    """Neither by our tries nor by Celery's own, nor as a failure instead; and calls no hook."""
    called: list[str] = []

    class Hooked(LeasedTask):
        abstract = True

        def on_success(self, *_: Any) -> None:
            called.append("success")

        def on_failure(self, *_: Any) -> None:
            called.append("failure")

    @leased(app, base=Hooked)
    def task() -> None:
        pass

    def meanwhile() -> None:
        if end == "taken":
            delivery.taken()
        flags = {"out of time": FLAG_OUT_OF_TIME, "too long": FLAG_MAX_DURATION}
        delivery.board.flag(delivery.slot, flags.get(end, 0))

    away = Away(task.backend, 99)
    away.meanwhile = meanwhile
    if always:
        task.backend.always_retry = True
        task.backend.exception_safe_to_retry = lambda exc: isinstance(exc, OSError)
    assert isinstance(delivery.trace(task).info.retval, void)
    assert away.seen == [states.SUCCESS]
    assert (outcome_of(delivery), called) == (outcome, [])


def test_a_soft_time_limit_ends_the_tries(app: Celery, delivery: Delivery) -> None:
    """The failure that it is gets one."""

    @leased(app)
    def task() -> None:
        pass

    away = Away(task.backend, 99)

    def meanwhile() -> None:
        if len(away.seen) == 2:
            raise SoftTimeLimitExceeded

    away.meanwhile = meanwhile
    with pytest.warns(RuntimeWarning, match="raised outside body"):
        traced = delivery.trace(task)
    assert isinstance(traced.info.retval, NotStored)
    assert away.seen == [states.SUCCESS, states.SUCCESS, states.FAILURE]
    assert outcome_of(delivery) is Outcome.NOT_STORED


def test_what_is_wrong_with_a_result_is_stored_as_a_failure(
    app: Celery, delivery: Delivery
) -> None:
    """As in Celery; the next try would say the same."""

    @leased(app)
    def task() -> None:
        pass

    Away(task.backend, 1, TypeError("too large"))
    with pytest.warns(RuntimeWarning, match="raised outside body"):
        delivery.trace(task)
    assert (delivery.state(task), outcome_of(delivery)) == (states.FAILURE, Outcome.DONE)


def test_what_cannot_be_stored_at_all_is_no_outcome(app: Celery, delivery: Delivery) -> None:
    """Celery would acknowledge it all the same."""

    @leased(app)
    def task() -> None:
        pass

    Away(task.backend, 99, TypeError("broken"))
    with pytest.warns(RuntimeWarning, match="raised outside body"):
        traced = delivery.trace(task)
    assert isinstance(traced.info.retval, NotStored)
    assert outcome_of(delivery) is Outcome.NOT_STORED


def test_what_a_task_stores_by_itself_is_its_own_affair(app: Celery, delivery: Delivery) -> None:
    """Its progress is not tried again, and marks no end."""

    @leased(app, bind=True)
    def task(self: Any) -> str:
        away.times = 1
        with pytest.raises(OSError, match="away"):
            self.update_state(state="HALF")
        self.backend.mark_as_done(self.request.id, "half", self.request)
        assert outcome_of(delivery) is Outcome.UNREPORTED
        return "whole"

    away = Away(task.backend, 0)
    delivery.trace(task)
    assert outcome_of(delivery) is Outcome.DONE


class Away249(sqlite3.OperationalError):
    """A driver's error."""


def chained(cause: Exception | None) -> Exception:
    error = BackendStoreError("failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionRefusedError(), True),
        (TimeoutError(), True),
        (OperationalError(), True),
        (redis.ConnectionError(), True),
        (Away249(), True),
        (chained(OSError()), True),
        (chained(None), False),
        (chained(ValueError()), False),
        (EncodeError(), False),
        (sqlite3.IntegrityError(), False),
        (ValueError(), False),
        (MemoryError(), False),
        (SoftTimeLimitExceeded(), False),
    ],
)
def test_which_errors_say_that_a_backend_is_away(error: Exception, *, passes: bool) -> None:
    """All others say that something is wrong."""
    app = Celery(broker="memory://", backend="redis://127.0.0.1:1", set_as_current=False)
    assert may_pass(app.backend, error) is passes


def test_celerys_own_tries_call_what_is_guarded(app: Celery) -> None:
    """By the names that are relied on; on the object, so that each is found there."""
    paused: list[str] = []
    backend = app._get_backend()
    backend._sleep = lambda _: paused.append("sleep")
    backend.always_retry, backend.max_retries = True, 1
    backend.exception_safe_to_retry = lambda _: True
    Away(backend, 1)
    backend.store_result("id", 1, states.SUCCESS)
    client = Celery(broker="memory://", backend="redis://127.0.0.1:1", set_as_current=False)
    store: RedisBackend = client._get_backend()
    store.on_connection_error = lambda *_: paused.append("connection") or 0.0

    def away() -> None:
        raise redis.ConnectionError

    with pytest.raises(redis.ConnectionError):
        store.ensure(away, (), max_retries=2)
    assert paused[0] == "sleep"
    assert set(paused[1:]) == {"connection"}


def test_no_wait_of_kombu_stops_all_greenlets(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has taken the blocking ``sleep`` before a pool could put another in its place."""
    waits: list[float] = []
    client = Celery(broker="memory://", backend="redis://127.0.0.1:1", set_as_current=False)
    store: RedisBackend = client._get_backend()
    store.on_connection_error = lambda *_: waits.append(0.05) or 0.05
    guard(store)
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _: pytest.fail("it has slept"))

    def away() -> None:
        raise redis.ConnectionError

    with pytest.raises(redis.ConnectionError):
        store.ensure(away, (), max_retries=2)
    assert waits == [0.05, 0.05]


def test_celerys_marks_store_by_what_is_guarded(app: Celery) -> None:
    """``store_result`` first, then the chord's count."""
    backend, steps = app._get_backend(), []
    backend.store_result = lambda *_, **__: steps.append("store")
    backend.on_chord_part_return = lambda *_, **__: steps.append("chord")
    request: Any = SimpleNamespace(chord="body", ignore_result=False, errbacks=[], chain=None)
    backend.mark_as_done("id", 1, request)
    backend.mark_as_failure("id", ValueError(), request=request)
    backend.mark_as_revoked("id", request=request)
    backend.mark_as_retry("id", ValueError(), request=request)
    assert steps == ["store", "chord"] * 3 + ["store"]


def test_a_backend_is_guarded_once(app: Celery) -> None:
    """Runs do not wrap each other's wrappers."""
    backend = app._get_backend()
    guard(backend)
    first = backend.store_result
    guard(backend)
    assert backend.store_result is first
    assert not issubclass(GivenUp, Exception)
