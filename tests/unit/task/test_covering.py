"""Undecorated tasks under leases in the task process: Celery's own functions call them."""

from __future__ import annotations

import inspect
import itertools
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, Task
from celery.app import trace as celery_trace
from celery.app.trace import build_tracer

from celery_lease import LeasedTask, LeaseLost, current_context
from celery_lease.board import Board, Outcome, granting
from celery_lease.core.clock import host_seconds
from celery_lease.task import covering
from celery_lease.task.outcome import Discarded, OutOfReach
from unit.leased_runs import Delivery, make_app, sent

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.compat


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app of one test; its broker is the process's, and empty."""
    app = make_app()
    monkeypatch.setattr(celery_trace, "_localized", [app._tasks, frozenset({"json"}), "w@unit"])
    sent(app)
    return app


@pytest.fixture
def delivery(monkeypatch: pytest.MonkeyPatch) -> Delivery:
    """A delivery whose lease is held."""
    return Delivery(monkeypatch, mode="daemon")


def plain(app: Celery, **options: Any) -> Any:
    """Return a decorator that makes a plain task of *app* alone."""
    return app.task(**{"shared": False, "lazy": False, "acks_late": True, **options})


def run(
    delivery: Delivery, task: Any, *args: Any, named: dict[str, Any] | None = None, **facts: Any
) -> tuple[int, Any, float]:
    """Run a task as a pool process does that is sent :func:`covering.trace`."""
    if task.__trace__ is None:
        task.__trace__ = build_tracer(task.name, task, app=task.app)  # as every pool does
    request = {
        "id": delivery.task_id,
        "delivery_info": {"exchange": "", "routing_key": "celery"},
        "called_directly": False,
        **facts,
    }
    ticket = {**delivery.ticket, "id": delivery.task_id}
    body = (args, named or {}, {})
    target = celery_trace.fast_trace_task
    found: tuple[int, Any, float] = covering.trace(
        ticket, target, task.name, delivery.task_id, request, body, None, None
    )
    return found


def test_a_run_has_its_lease_and_sees_no_ticket(app: Celery, delivery: Delivery) -> None:
    """The context of the lease, beside the request as Celery made it; the outcome is told."""

    @plain(app, bind=True)
    def f(self: Task[Any, Any]) -> list[Any]:
        context = current_context()
        return [context.leased, context.fencing_token, self.request.delivery_info]

    failed, text, _ = run(delivery, f)
    assert (failed, text) == (0, "[True, 7, {'exchange': '', 'routing_key': 'celery'}]")
    assert delivery.state(f) == "SUCCESS"
    assert delivery.board.read_outcome(delivery.slot) is Outcome.DONE


def test_a_task_names_its_parameters_as_it_likes(app: Celery, delivery: Delivery) -> None:
    """As Celery's own ``celery.starmap`` and ``celery.map``, whose first one is ``task``."""

    @plain(app)
    def f(task: str, call: str) -> str:
        return task + call

    assert run(delivery, f, named={"task": "a", "call": "b"})[:2] == (0, "'ab'")


def test_a_run_whose_lease_is_gone_does_not_start(app: Celery, delivery: Delivery) -> None:
    """I3: as that of a leased task."""
    ran: list[int] = []

    @plain(app)
    def f() -> None:
        ran.append(1)

    delivery.taken()
    failed, answer, _ = run(delivery, f)
    assert (failed, ran) == (1, [])
    assert isinstance(answer.exception.exc, Discarded)


def test_the_result_of_a_lost_run_is_thrown_away(app: Celery, delivery: Delivery) -> None:
    """Nothing is stored, and nothing that comes after it is sent."""

    @plain(app)
    def f() -> int:
        delivery.taken()
        return 1

    failed, answer, _ = run(delivery, f, chain=[f.s()])
    assert failed == 1
    assert isinstance(answer.exception.exc, Discarded)
    assert (delivery.state(f), sent(app)) == ("PENDING", [])


@pytest.mark.parametrize("way", ["retry", "autoretry", "replace"])
def test_a_lost_run_sends_nothing_in_its_place(app: Celery, delivery: Delivery, way: str) -> None:
    """Its new holder does."""
    seen: list[Exception] = []
    options = {"autoretry_for": (ValueError,)} if way == "autoretry" else {}

    @plain(app, bind=True, **options)
    def f(self: Any) -> None:
        delivery.taken()
        try:
            if way == "autoretry":
                raise ValueError
            raise self.retry(countdown=0) if way == "retry" else self.replace(self.s())
        except LeaseLost as exc:
            seen.append(exc)
            raise

    failed, answer, _ = run(delivery, f)
    assert failed == 1
    assert isinstance(answer.exception.exc, Discarded)
    assert len(seen) == (way != "autoretry")
    assert (delivery.state(f), sent(app)) == ("PENDING", [])


@pytest.mark.parametrize("exchange", ["", "named"])
def test_a_retry_carries_no_ticket(app: Celery, delivery: Delivery, exchange: str) -> None:
    """Celery copies delivery information to the next message where the exchange has a name."""

    @plain(app, bind=True)
    def f(self: Any) -> None:
        raise self.retry(countdown=0, queue="celery")

    facts = {"exchange": exchange, "routing_key": "celery"}
    run(delivery, f, delivery_info=facts)
    (message,) = sent(app)
    assert "lease" not in {**message.headers, **message.properties, **message.delivery_info}
    assert delivery.board.read_outcome(delivery.slot) is Outcome.DONE


def test_a_state_of_a_lost_run_is_not_stored(app: Celery, delivery: Delivery) -> None:
    """It is its new holder's to write."""

    @plain(app, bind=True)
    def f(self: Any) -> None:
        self.update_state(state="BEFORE")
        delivery.taken()
        self.update_state(state="AFTER")

    run(delivery, f)
    assert delivery.state(f) == "BEFORE"


def test_the_class_of_a_task_is_left_alone(app: Celery, delivery: Delivery) -> None:
    """And its own ``__call__``, hooks and signature."""
    called: list[str] = []

    class Base(Task):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            called.append("call")
            return super().__call__(*args, **kwargs)

        def before_start(self, *_: Any) -> None:
            called.append("before_start")

        def on_success(self, *_: Any) -> None:
            called.append("on_success")

    @plain(app, base=Base)
    def f(x: int) -> int:
        called.append("run")
        return x

    before = dict(vars(type(f))), inspect.signature(f.run)
    run(delivery, f, 1)
    assert called == ["before_start", "call", "run", "on_success"]
    assert (dict(vars(type(f))), inspect.signature(f.run)) == before
    assert not isinstance(f, LeasedTask)
    with pytest.raises(TypeError):
        f.delay()  # its arguments are checked as before


@pytest.mark.parametrize("call", [lambda f: f(2), lambda f: f.apply((2,)).get()])
def test_a_call_within_another_run_is_that_ones_work(
    app: Celery, delivery: Delivery, call: Callable[[Any], Any]
) -> None:
    """Directly or eagerly, of a task that is covered already."""

    @plain(app)
    def f(depth: int) -> Any:
        return call(f) if depth == 1 else [current_context().leased, current_context().task_id]

    assert run(delivery, f, 1)[1] == str([True, delivery.task_id])


def test_a_task_is_covered_again_when_celery_made_its_tracer_anew(
    app: Celery, delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does at each connection, outside of pools of processes; and never twice."""

    @plain(app)
    def f() -> int:
        return current_context().fencing_token or 0

    assert run(delivery, f)[1] == "7"
    first = f.run
    f.__trace__ = build_tracer(f.name, f, app=app)
    assert run(Delivery(monkeypatch, token=8), f)[1] == "8"
    covered = f.__trace__
    assert run(Delivery(monkeypatch, token=9), f)[1] == "9"
    assert (f.run, f.__trace__) == (first, covered)


def test_a_message_without_a_lease_is_traced_as_ever(app: Celery, delivery: Delivery) -> None:
    """By a process that ran the same task under a lease before."""

    @plain(app)
    def f() -> bool:
        try:
            return current_context().leased
        except LookupError:
            return False

    assert run(delivery, f)[1] == "True"
    assert f.__trace__("other", (), {}, {"id": "other", "called_directly": False}).retval is False


# Acknowledged early: the process waits for its start.


def start(delivery: Delivery, meanwhile: Callable[[], object]) -> Any:
    """Begin an early task in a thread, let something happen, and return what came of it."""
    with ThreadPoolExecutor(1) as threads:
        begun = threads.submit(covering.start, delivery.ticket, lambda *args: args, "t", 1)
        assert not wait([begun], 0.05).done
        meanwhile()
        return begun.result(10)


def test_an_early_task_starts_when_it_is_granted(delivery: Delivery) -> None:
    """Not before, and by its own function; it says that it has seen that."""
    grants = granting.Grants(delivery.board)
    assert start(delivery, lambda: grants.grant(delivery.slot, 0.0)) == ("t", 1)
    grants.sweep(0.0)
    assert len(grants) == 0


@pytest.mark.parametrize("how", ["refused", "lost", "reused"])
def test_an_early_task_that_is_not_granted_does_not_start(delivery: Delivery, how: str) -> None:
    """Its lease was lost, or ended in order; the record may even be another one's by now."""
    board, slot = delivery.board, delivery.slot

    def end() -> None:
        if how == "lost":
            delivery.taken()
        else:
            granting.refuse(board, slot)
        while how == "reused" and (heir := board.lend()).index != slot.index:
            board.free(heir)
        if how == "reused":
            board.allow(heir, host_seconds() + 100)
            granting.Grants(board).grant(heir, 0.0)

    failed, answer, _ = start(delivery, end)
    assert failed == 1
    assert isinstance(answer.exception.exc, Discarded)


def test_an_early_task_does_not_start_without_its_worker(
    delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody will acknowledge it; its message comes back when its lease ends."""
    parents = itertools.chain([1], itertools.repeat(2))
    monkeypatch.setattr("os.getppid", lambda: next(parents))
    assert not granting.wait(delivery.board, delivery.slot)


@pytest.mark.parametrize("opens", [True, False])
def test_a_process_that_opens_the_board_asks_for_its_start(
    monkeypatch: pytest.MonkeyPatch, *, opens: bool
) -> None:
    """So that nothing is acknowledged for one that cannot, and would not see the answer."""
    monkeypatch.setattr(granting, "LATEST", 10.0 if opens else 0.05)
    board = Board.create(8, named=True)
    try:
        slot = board.lend()
        board.allow(slot, host_seconds() + 100)
        with ThreadPoolExecutor(2) as threads:
            asked = threads.submit(granting.is_asked, board, slot)
            if opens:
                begun = threads.submit(granting.wait, board, slot)
            assert asked.result(10) is opens
            granting.refuse(board, slot)
            assert not opens or not begun.result(10)
    finally:
        board.close()


def test_an_early_task_whose_process_cannot_reach_the_board_says_so(delivery: Delivery) -> None:
    """Whether it was granted cannot be known."""
    ticket = {**delivery.ticket, "board": "/nowhere/at/all"}
    _, answer, _ = covering.start(ticket, lambda *_: 1, "t")
    assert isinstance(answer.exception.exc, OutOfReach)


def test_a_process_without_the_fast_way_takes_the_current_app(
    app: Celery, delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``trace_task_ret``, which pools get that are not the worker's own."""
    monkeypatch.setattr(covering, "current_app", app)

    @plain(app)
    def f() -> bool:
        return current_context().leased

    ticket = {**delivery.ticket, "id": delivery.task_id}
    request = {"id": delivery.task_id, "delivery_info": {}}

    def target(*args: Any) -> Any:
        return celery_trace.trace_task_ret(*args, app=app)

    answer = covering.trace(
        ticket, target, f.name, delivery.task_id, request, ((), {}, {}), None, None
    )
    assert answer[:2] == (0, "True")
