"""Requests of undecorated tasks: when they are acknowledged, and what they do not start without."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from celery import Task
from celery.app.trace import fast_trace_task
from celery.concurrency.base import apply_target
from celery.exceptions import Reject, TaskRevokedError, TimeLimitExceeded, WorkerLostError
from celery.platforms import EX_FAILURE
from celery.worker import state
from celery.worker.request import Request, create_request_cls

from celery_lease import LeasedRequest
from celery_lease.task import covering
from celery_lease.task.outcome import Discarded, OutOfReach
from celery_lease.worker import covered
from celery_lease.worker.covered import CoveredRequest
from celery_lease.worker.entries import LeaseHandle
from unit.leased_runs import make_app, message_of
from unit.worker.test_request import COMPLETED, DROPPED, HELD, LOST, Leases, _raised

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

pytestmark = pytest.mark.compat


class EarlyLeases(Leases):
    """A worker's leases, of which one may be asked to end before its task starts."""

    answers = True
    loop_is_task = False

    def complete_first(self, _tag: str) -> bool:
        if self.answers:
            self._end(COMPLETED)
        return self.answers


class Pool:
    """A pool that keeps what it gets, in a module of a kind's name."""

    def __init__(self, kind: str) -> None:
        self.calls: list[Any] = []
        self.watch: Callable[[], object] = lambda: None
        self.__class__ = type("TaskPool", (Pool,), {"__module__": f"celery.concurrency.{kind}"})

    def apply_async(self, target: Any, args: Any = (), **options: Any) -> None:
        self.watch()
        self.calls.append((target, args, options))

    def run(self) -> None:
        """Run what it got as a pool of this process does."""
        (target, args, options), *_ = self.calls
        options = {each: options[each] for each in ("callback", "accept_callback")}
        apply_target(target, args, {}, **options)


class Bench:
    """A request of a covered task, its lease, and the events and results that come of it."""

    def __init__(self, app: Celery, kind: str = "prefork", **options: Any) -> None:
        options = {"shared": False, "lazy": False, "name": uuid.uuid4().hex, **options}
        self.hooks: list[str] = []

        class Base(Task):
            abstract = True

            def on_failure(task, *_: Any) -> None:  # noqa: N805
                self.hooks.append("on_failure")

        self.ran: list[int] = []

        @app.task(base=Base, **options)
        def task() -> None:
            self.ran.append(1)

        assert covered.cover(task) == ""
        self.task, self.leases, self.pool = task, EarlyLeases(), Pool(kind)
        self.events: list[str] = []
        message = message_of(task, uuid.uuid4().hex)
        eventer = Mock(enabled=True, send=lambda event, **_: self.events.append(event))
        app.use_fast_trace_task = True
        cls = create_request_cls(task.Request, task, self.pool, "w@unit", eventer, app=app)
        self.request: Any = cls(message, app=app, task=task, eventer=eventer, hostname="w@unit")
        self.request.lease = LeaseHandle(self.leases, "tag")  # type: ignore[arg-type]
        self.acked, self.rejected = Mock(), Mock()
        self.request._on_ack, self.request._on_reject = self.acked, self.rejected
        state.task_reserved(self.request)

    def start(self) -> None:
        self.request.execute_using_pool(self.pool)

    @property
    def state(self) -> str:
        return str(self.task.AsyncResult(self.request.id).state)

    @property
    def is_over(self) -> bool:
        """Whether the worker has forgotten the request, and its place is free."""
        return self.request not in state.reserved_requests and self.acked.called


@pytest.fixture
def app() -> Celery:
    """An app of one test."""
    return make_app()


# Acknowledged late.


def test_the_ticket_of_a_late_task_is_beside_its_arguments(app: Celery) -> None:
    """The request that the task sees, and copies into its retry, is Celery's own."""
    bench = Bench(app, acks_late=True, time_limit=9)
    bench.start()
    ((target, (ticket, inner, name, *_), options),) = bench.pool.calls
    assert (target, inner, name) == (covering.trace, fast_trace_task, bench.task.name)
    assert ticket == {"tag": "tag"}
    assert "lease" not in bench.request.delivery_info
    assert (options["timeout"], options["correlation_id"]) == (9, bench.request.id)
    assert bench.leases.end == HELD


@pytest.mark.parametrize(
    ("rejects", "end", "state"), [(True, LOST, "PENDING"), (False, COMPLETED, "FAILURE")]
)
def test_a_late_task_whose_process_died_does_as_it_says(
    app: Celery, *, rejects: bool, end: str, state: str
) -> None:
    """By its own ``reject_on_worker_lost``; no hook is called that Celery does not call."""
    bench = Bench(app, acks_late=True, reject_on_worker_lost=rejects)
    bench.request.on_failure(_raised(WorkerLostError("x")))
    assert (bench.leases.end, bench.state, bench.hooks) == (end, state, [])


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({}, True),
        ({"reject_on_worker_lost": True}, False),
        ({"reject_on_worker_lost": True, "retry_on_worker_lost": True}, True),
    ],
    ids=str,
)
def test_a_dead_process_keeps_its_lease_until_its_pool_tells(
    app: Celery, options: dict[str, Any], *, waits: bool
) -> None:
    """It takes ``worker_lost_wait``; a lease may be shorter, and the task may be to fail."""
    app.conf.worker_lost_wait = 7.0
    bench = Bench(app, acks_late=True, **options)
    held = Mock(grace=0.0, exclusive=None)
    held.lease.claim.deliveries, held.lease.claim.turned_away = 1, None
    bench.request.lease = LeaseHandle(bench.leases, "tag", entry=held)  # type: ignore[arg-type]
    bench.start()
    assert held.grace == (7.0 + covered.POOL_LOOKS if waits else 0.0)


def test_the_hooks_of_a_time_limit_are_those_that_celery_calls(app: Celery) -> None:
    """From 5.7 on, and once."""
    bench = Bench(app, acks_late=True)
    bench.request.on_failure(_raised(TimeLimitExceeded(1)))
    bench.request.on_timeout(False, 1)  # noqa: FBT003
    assert bench.hooks == ["on_failure"] * covered.HOOKS_AT_LIMIT
    assert (bench.leases.end, bench.state) == (COMPLETED, "FAILURE")


def test_a_late_task_may_reject_its_message(app: Celery) -> None:
    """As ever."""
    bench = Bench(app, acks_late=True)
    bench.request.on_success((1, _raised(Reject("x", requeue=False)), 0.1))
    assert bench.leases.end == DROPPED


def test_a_revoked_task_calls_no_hook(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leased one does; this one's author was promised nothing."""
    bench = Bench(app, acks_late=True)
    monkeypatch.setattr(state, "revoked", {bench.request.id})
    monkeypatch.setattr("celery.worker.request.revoked_tasks", {bench.request.id})
    with pytest.raises(TaskRevokedError):
        bench.start()
    assert (bench.state, bench.hooks, bench.leases.end) == ("REVOKED", [], COMPLETED)


# Acknowledged early.


def test_an_early_task_waits_for_its_start_in_its_process(app: Celery) -> None:
    """With its lease, and the ticket beside its arguments; its process is told when it may."""
    bench = Bench(app, time_limit=9)
    bench.start()
    ((target, (ticket, inner, name, *_), options),) = bench.pool.calls
    assert (target, inner, name) == (covering.start, fast_trace_task, bench.task.name)
    assert (ticket, options["timeout"]) == ({"tag": "tag"}, 9)
    assert (bench.leases.end, bench.acked.called) == (HELD, False)


def test_an_early_task_that_was_acknowledged_is_a_plain_one(app: Celery) -> None:
    """From its start on: its process's death is its failure."""
    bench = Bench(app)
    bench.start()
    bench.request.on_accepted(1, 1.0)
    assert (bench.request.lease, bench.request.acknowledged) == (None, True)
    assert (bench.leases.end, bench.acked.call_count) == (COMPLETED, 1)
    bench.request.on_failure(_raised(WorkerLostError("x")))
    assert bench.state == "FAILURE"


def test_an_early_task_that_its_process_did_not_start_ends_quietly(app: Celery) -> None:
    """Its acknowledgement was refused, and the process has said so."""
    bench = Bench(app)
    bench.start()
    bench.leases.answers = False
    bench.request.on_accepted(1, 1.0)
    bench.request.on_success(covering.nothing(Discarded("x")))
    assert (bench.state, bench.events) == ("PENDING", [])
    assert bench.is_over


def test_a_process_that_cannot_be_told_stops_the_worker(
    app: Celery, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not asked for its start, so nothing was acknowledged."""
    monkeypatch.setattr(state, "should_stop", None)
    bench = Bench(app)
    bench.start()
    bench.leases.answers = False
    bench.request.on_accepted(1, 1.0)
    bench.request.on_success(covering.nothing(OutOfReach("x")))
    assert "cannot reach the worker's memory" in caplog.text
    assert bench.leases.end != COMPLETED
    assert state.should_stop == EX_FAILURE
    assert bench.leases.intake.stopping


def test_an_early_task_is_acknowledged_before_a_foreign_pool_gets_it(app: Celery) -> None:
    """Of which it is not known when it accepts; from then on its request is a plain one."""
    bench = Bench(app, "foreign")
    bench.pool.watch = lambda: bench.events.append(f"given to the pool, {bench.leases.end}")
    bench.start()
    assert bench.events == ["given to the pool, completed"]
    assert (bench.request.lease, bench.request.acknowledged) == (None, True)
    ((target, (name, *_), _),) = bench.pool.calls
    assert (target, name) == (fast_trace_task, bench.task.name)


def test_one_whose_acknowledgement_is_refused_is_not_given_to_a_foreign_pool(app: Celery) -> None:
    """Its message is somebody else's: no state, no event, and its place is free."""
    bench = Bench(app, "foreign")
    bench.leases.answers = False
    with pytest.raises(TaskRevokedError):
        bench.start()
    assert bench.pool.calls == []
    assert (bench.state, bench.events) == ("PENDING", [])
    assert bench.is_over


@pytest.mark.parametrize("kind", covered.ACCEPT_FIRST)
def test_an_early_task_is_acknowledged_when_its_thread_takes_it(app: Celery, kind: str) -> None:
    """Where it may wait in its pool: with the lease that it has."""
    bench = Bench(app, kind)
    bench.start()
    assert (bench.leases.end, bench.acked.called) == (HELD, False)
    bench.request.on_accepted(1, 1.0)
    assert (bench.leases.end, bench.acked.called) == (COMPLETED, True)
    assert bench.events == ["task-started"]


@pytest.mark.parametrize("kind", covered.ACCEPT_FIRST)
def test_an_early_task_whose_acknowledgement_is_refused_does_not_start(
    app: Celery, kind: str
) -> None:
    """The pool runs what stands for it, and Celery hears of nothing."""
    bench = Bench(app, kind)
    bench.start()
    bench.leases.answers = False
    bench.pool.run()
    assert bench.ran == []
    assert (bench.state, bench.events) == ("PENDING", [])
    assert bench.is_over


def test_a_revoked_early_task_is_not_acknowledged_for_its_start(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is when its state is stored."""
    bench = Bench(app, "foreign")
    bench.leases.complete_first = Mock()  # type: ignore[method-assign]
    monkeypatch.setattr("celery.worker.request.revoked_tasks", {bench.request.id})
    with pytest.raises(TaskRevokedError):
        bench.start()
    assert not bench.leases.complete_first.called
    assert (bench.state, bench.leases.end) == ("REVOKED", COMPLETED)


# Whose requests can be covered.


class Own(Request):
    """A project's own."""

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        """Note it, and go on."""
        self.seen = True
        super().on_accepted(pid, time_accepted)


def test_an_own_request_class_is_mixed(app: Celery) -> None:
    """As that of a leased task: the lease's part first."""
    bench = Bench(app, "solo", Request=Own)
    found = bench.task.Request
    assert found.__mro__.index(CoveredRequest) < found.__mro__.index(Own)
    bench.start()
    bench.request.on_accepted(1, 1.0)
    assert bench.request.seen


def test_a_leased_request_of_ones_own_is_mixed(app: Celery) -> None:
    """On an undecorated task, too."""

    class Mine(LeasedRequest):
        pass

    bench = Bench(app, Request=Mine)
    assert issubclass(bench.task.Request, Mine)
    assert issubclass(bench.task.Request, CoveredRequest)
    bench.start()
    bench.request.on_accepted(1, 1.0)
    assert bench.leases.end == COMPLETED


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"Strategy": "celery_batches:Strategy"}, "strategy of its own, 'celery_batches:Strategy'"),
        ({"Request": "no_such_module:Any"}, "its Request cannot be imported"),
        ({"Request": int}, "its Request must be a subclass"),
    ],
)
def test_what_cannot_be_covered_says_why(facts: dict[str, Any], why: str) -> None:
    """And is left as it is."""
    task = SimpleNamespace(name="t", **{"Strategy": Task.Strategy, "Request": Request, **facts})
    before = dict(vars(task))
    assert why in covered.cover(task)
    assert vars(task) == before


def test_a_covered_request_without_a_lease_is_a_plain_one(app: Celery) -> None:
    """As of a message that came without one, from a broker that another worker leases."""
    bench = Bench(app, acks_late=True)
    bench.request.lease = None
    bench.start()
    ((target, _, _),) = bench.pool.calls
    assert target is fast_trace_task
    assert bench.leases.end == HELD
