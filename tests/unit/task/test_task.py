"""Leased tasks in the task process: options, direct and eager calls, and fenced outcomes."""

from __future__ import annotations

import inspect
import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, Task, chain
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from celery_lease import (
    LeaseConfigError,
    LeasedTask,
    LeaseLost,
    ShutdownRequested,
    ToolContext,
    current_context,
    leased_task,
)
from celery_lease.core.loss import FLAG_LOST, FLAG_RELEASED, FLAG_SUPERSEDED
from celery_lease.task.current import active_context
from celery_lease.task.outcome import Discarded, HandedOver
from unit.leased_runs import Delivery, leased, make_app, sent

if TYPE_CHECKING:
    from collections.abc import Callable


def nothing() -> None:
    """Do nothing, as a task does that is never run."""


# Declaring and calling.


def test_a_direct_call_has_a_context_without_a_lease(app: Celery) -> None:
    """Called as a plain function a task can do all that it does in a worker."""

    @leased(app)
    def f(x: int, *, context: ToolContext) -> Any:
        for _ in context.track([1, 2]):
            with context.step("part"), context.quiet(5):
                context.beat()
        return x, context.leased, context.remaining, current_context() is context

    assert f(1) == (1, False, float("inf"), True)
    assert active_context() is None


@pytest.mark.parametrize("call", [lambda f: f.apply((1,)).get(), lambda f: f.delay(1).get()])
def test_eager_calls_have_a_context_without_a_lease(
    app: Celery, call: Callable[[Any], Any]
) -> None:
    """``apply()`` and ``task_always_eager`` run the task as a direct call does."""
    app.conf.update(task_always_eager=True, task_eager_propagates=True)

    @leased(app, bind=True)
    def f(self: Task[Any, Any], x: int, *, context: ToolContext) -> Any:
        context.beat(1, 2, "note")
        return x, context.leased, context.task_id == self.request.id

    assert tuple(call(f)) == (1, False, True)
    assert active_context() is None


def test_a_context_given_by_the_caller_is_the_one_used(app: Celery) -> None:
    """A test may bring its own, also in the middle of a leased call."""

    @leased(app)
    def f(*, context: ToolContext) -> Any:
        return context, current_context()

    mine = object()
    assert f(context=mine) == (mine, mine)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2), {}), ((1,), {"context": 3}), ((1,), {"y": 3})]
)
@pytest.mark.parametrize("bind", [False, True])
def test_delay_refuses_wrong_arguments_and_the_context(
    app: Celery, args: Any, kwargs: Any, *, bind: bool
) -> None:
    """Celery's own check knows the public signature: nothing missing, nothing superfluous."""
    if bind:

        @leased(app, bind=True)
        def f(self: Task[Any, Any], x: int, *, context: ToolContext) -> None: ...
    else:

        @leased(app)
        def f(x: int, *, context: ToolContext) -> None: ...

    with pytest.raises(TypeError):
        f.delay(*args, **kwargs)
    assert sent(app) == []
    f.delay(1)
    assert len(sent(app)) == 1


@pytest.mark.parametrize("bind", [False, True])
def test_tools_see_the_public_signature(app: Celery, *, bind: bool) -> None:
    """``inspect.signature(task.run)`` shows what callers pass."""
    if bind:

        @leased(app, bind=True)
        def f(self: Task[Any, Any], x: int, *, context: ToolContext) -> None:
            """Say what it does."""
    else:

        @leased(app)
        def f(x: int, *, context: ToolContext) -> None:
            """Say what it does."""

    assert list(inspect.signature(f.run).parameters) == ["x"]
    assert f.__doc__ == f.run.__doc__ == "Say what it does."
    assert f.__name__ == "f"


def test_a_task_may_have_a_context_of_its_own(app: Celery, delivery: Delivery) -> None:
    """Another annotation makes it the author's: callers pass it, and the lease is beside it."""

    @leased(app)
    def f(x: int, *, context: dict[str, int]) -> Any:
        return x, context, current_context().leased

    f.delay(1, context={"a": 2})
    assert delivery.trace(f, 1, context={"a": 2}).retval == (1, {"a": 2}, True)
    with pytest.raises(TypeError):
        f.delay(1)


def test_class_based_tasks_inherit_and_call_their_parents(app: Celery, delivery: Delivery) -> None:
    """``super().run`` works with and without a context passed on, under one lease."""

    class Parent(LeasedTask):
        abstract = True

        def run(self, x: int, *, context: ToolContext) -> Any:
            return [x, context.fencing_token]

    class Child(Parent):
        name = "child"

        def run(self, x: int, *, context: ToolContext) -> Any:
            return super().run(x) + super().run(x + 1, context=context)

    class Grandchild(Child):
        name = "grandchild"

    for cls in (Child, Grandchild):
        task = app.register_task(cls())
        assert task(1) == [1, None, 2, None]
        assert delivery.trace(task, 1).retval == [1, 7, 2, 7]


def test_a_run_from_a_mixin_is_leased_too(app: Celery, delivery: Delivery) -> None:
    """Wherever a class gets its ``run`` from, it runs under the lease."""

    class Work:
        def run(self, *, context: ToolContext) -> Any:
            return context.fencing_token

    class Mixed(Work, LeasedTask):
        name = "mixed"

    assert delivery.trace(app.register_task(Mixed())).retval == 7


def test_an_app_whose_own_task_class_has_a_call_of_its_own(delivery: Delivery) -> None:
    """Flask's pattern: ``__call__`` wraps ``run`` in an application context."""
    entered = []

    class ContextTask(Task):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            entered.append("in")
            return self.run(*args, **kwargs)

    app = make_app(task_cls=type("Base", (LeasedTask, ContextTask), {"abstract": True}))

    @app.task(shared=False)
    def f(x: int, *, context: ToolContext) -> Any:
        return x, context.leased

    assert f(1) == (1, False)
    assert delivery.trace(f, 1).retval == (1, True)
    assert entered == ["in", "in"]


def test_a_validated_task_gets_its_models_and_its_context(app: Celery, delivery: Delivery) -> None:
    """``pydantic=True`` validates the arguments and leaves the context alone."""
    pydantic = pytest.importorskip("pydantic")

    class Job(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        path: str

    def f(job: Job, *, context: ToolContext) -> Any:
        return job.path, context.leased

    f.__annotations__["job"] = Job
    task = leased(app, pydantic=True)(f)
    task.delay({"path": "a"})
    assert delivery.trace(task, {"path": "a"}).retval == ("a", True)


def test_a_task_is_named_and_annotated_as_any_other(app: Celery) -> None:
    """``name=`` and ``task_annotations`` work, and lease options come from there as well."""
    app.conf.task_annotations = {"my.name": {"rate_limit": "1/s", "lease_extension": 77}}

    @leased(app, name="my.name", lease_interval=7)
    def f() -> None: ...

    from celery_lease.task.task import lease_options

    assert app.tasks["my.name"].rate_limit == "1/s"
    assert lease_options(app.tasks["my.name"]) == {"lease_interval": 7, "lease_extension": 77}


def test_options_are_inherited_and_overridden(app: Celery) -> None:
    """The nearest class of the line decides each option."""
    from celery_lease.task.task import lease_options

    class Slow(LeasedTask):
        abstract = True
        lease_extension = 600
        lease_interval = 50

    @leased(app, base=Slow, lease_extension=700)
    def f() -> None: ...

    assert lease_options(app.tasks[f.name]) == {"lease_extension": 700, "lease_interval": 50}


@pytest.mark.parametrize("option", ["acks_late", "reject_on_worker_lost"])
def test_what_a_lease_needs_cannot_be_switched_off(app: Celery, option: str) -> None:
    """The error names task and option and says why, wherever it was asked for."""
    with pytest.raises(
        LeaseConfigError, match=rf"{option} .*(?s:.)*(acknowledged|returned)"
    ) as raised:
        leased(app, name="mine", **{option: False})(nothing)
    assert "'mine'" in str(raised.value)
    assert "mine" not in app.tasks
    with pytest.raises(LeaseConfigError, match=option):
        type("Early", (LeasedTask,), {option: False})
    annotated = make_app()
    annotated.conf.task_annotations = {"yours": {option: False}}
    with pytest.raises(LeaseConfigError, match=option):
        leased(annotated, name="yours")(nothing)


def test_the_apps_own_defaults_do_not_unmake_a_leased_task() -> None:
    """``task_acks_late = False`` is every app's default, and means plain tasks."""
    app = make_app()
    app.conf.update(task_acks_late=False, task_reject_on_worker_lost=False)
    task = leased(app)(nothing)
    assert task.acks_late is task.reject_on_worker_lost is True


@pytest.mark.parametrize("option", [{"lease_extenson": 5}, {"lease_mode": "daemom"}])
def test_wrong_lease_options_are_refused_where_they_are_written(
    app: Celery, option: dict[str, Any]
) -> None:
    """At the decorator and in the call, before anything is sent."""
    with pytest.raises(LeaseConfigError, match=next(iter(option))):
        leased(app, **option)(nothing)
    task = leased(app, name="right")(nothing)
    with pytest.raises(LeaseConfigError, match=next(iter(option))):
        task.apply_async(**option)
    assert sent(app) == []


def test_a_calls_own_options_travel_in_a_header_and_through_retries(app: Celery) -> None:
    """Also as options of a signature; a retry keeps them and may change some."""
    task = leased(app, name="right")(nothing)
    task.s().set(lease_extension=50).apply_async(headers={"mine": 1})
    (message,) = sent(app)
    assert message.headers["lease"] == {"lease_extension": 50}
    assert message.headers["mine"] == 1
    task.push_request({**message.headers, "args": (), "kwargs": {}, "called_directly": False})
    with pytest.raises(Retry):
        task.retry(lease_interval=5, countdown=0)
    (message,) = sent(app)
    assert message.headers["lease"] == {"lease_extension": 50, "lease_interval": 5}


class Batches(Task):
    """As ``celery_batches.Batches``: it makes its own requests of its messages."""

    abstract = True

    def Strategy(self, *_: Any) -> Any:  # noqa: N802  (Celery's name for it)
        """Collect messages."""


@pytest.mark.parametrize("how", ["base", "class", "app", "option", "annotation", "plain base"])
def test_a_task_with_a_strategy_of_its_own_is_refused(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would run without its lease and without a word; the error says what to do.

    Failed before with: did not raise.
    """
    # Shared tasks of other tests' modules would be refused before it.
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
    app = make_app(task_cls=Batches) if how == "app" else make_app()
    if how == "annotation":
        app.conf.task_annotations = {"mine": {"Strategy": "proj:strategy"}}
    options = {"Strategy": "proj:strategy"} if how == "option" else {}
    with pytest.raises(LeaseConfigError, match=r"'mine'.*Strategy = .*make it a plain task"):
        if how == "class":
            type("Mine", (LeasedTask, Batches), {"name": "mine"})
        elif how == "plain base":
            leased_task(base=Batches, name="mine")(nothing)
        elif how == "base":
            base: Any = type("mine", (Batches, LeasedTask), {})
            leased(app, base=base, name="mine")(nothing)
        else:
            leased(app, name="mine", **options)(nothing)
    assert how == "annotation" or "mine" not in app.tasks


@pytest.mark.parametrize("bind", [False, True])
@pytest.mark.parametrize("as_class", [False, True])
def test_an_async_function_is_refused_where_it_is_written(
    app: Celery, *, bind: bool, as_class: bool
) -> None:
    """Whichever way a class gets it; the error names what to do instead."""

    async def work(*_: Any) -> None: ...

    run = work if bind else staticmethod(work)
    with pytest.raises(LeaseConfigError, match=r"'mine'.*run = .*asyncio\.run"):
        if as_class:
            type("Mine", (LeasedTask,), {"name": "mine", "run": run})
        else:
            leased(app, name="mine", bind=bind)(work)
    assert "mine" not in app.tasks


def test_a_function_that_hides_a_coroutine_fails_with_the_same_advice(
    app: Celery, delivery: Delivery
) -> None:
    """A wrapper may return one; only the call shows it."""

    async def work() -> None: ...

    @leased(app)
    def f() -> Any:
        return work()

    error = delivery.trace(f).info.retval
    assert isinstance(error, TypeError)
    assert "asyncio.run" in str(error)
    assert delivery.state(f) == "FAILURE"


def test_a_function_that_awaits_inside_is_a_task_like_any(app: Celery, delivery: Delivery) -> None:
    """``asyncio.run`` around the coroutine, also under functools.wraps; beats count in there."""
    import asyncio
    import functools

    async def work(*, context: ToolContext) -> bool:
        await asyncio.sleep(0)
        context.beat()
        return current_context().leased

    @leased(app)
    @functools.wraps(work)
    def f(**kwargs: Any) -> bool:
        return asyncio.run(work(**kwargs))

    assert delivery.trace(f).retval is True


def test_installing_is_part_of_binding_and_happens_once(app: Celery) -> None:
    """Each app with a leased task has the worker's parts, and has them once."""
    assert not any("lease" in str(step) for step in app.steps["consumer"])
    for name in ("a", "b"):
        leased(app, name=name)(nothing)
    for part in ("worker", "consumer"):
        assert sum("celery_lease" in str(step) for step in app.steps[part]) == 1


# A run under a lease.


def test_a_run_that_keeps_its_lease_asks_nobody(app: Celery, delivery: Delivery) -> None:
    """The result is stored, the links are sent, and the broker is not asked."""

    @leased(app)
    def f(x: int, *, context: ToolContext) -> int:
        context.beat()
        return x

    link = app.signature("other").set(task_id="link")
    assert delivery.trace(f, 1, request={"callbacks": [link]}).retval == 1
    assert delivery.state(f) == "SUCCESS"
    assert len(sent(app)) == 1
    assert delivery.asked == 0
    assert active_context() is None


@pytest.mark.parametrize(("released", "says"), [(True, "ran on after"), (False, "lost its lease")])
def test_a_discarded_outcome_says_who_has_ended_the_lease(
    app: Celery, delivery: Delivery, caplog: pytest.LogCaptureFixture, released: bool, says: str
) -> None:
    """A run that its worker has let go of, as at shutdown, is no lost lease."""

    @leased(app)
    def f() -> str:
        ended = FLAG_LOST | FLAG_SUPERSEDED
        flags = ended | (FLAG_RELEASED if released else 0)
        delivery.board.flag(delivery.slot, flags)
        return "late"

    assert isinstance(delivery.trace(f).info.retval, Discarded)
    assert f"] {says}" in caplog.text


def test_a_task_that_was_taken_back_before_its_start_lost_nothing(
    app: Celery, delivery: Delivery, caplog: pytest.LogCaptureFixture
) -> None:
    """A stopping worker returns what its pool has got and not begun; that is no loss."""

    @leased(app)
    def f() -> str:
        return "ran"

    delivery.taken()
    caplog.set_level("INFO")
    assert isinstance(delivery.trace(f).info.retval, Discarded)
    assert "not started: its lease is gone" in caplog.text
    assert "lost its lease" not in caplog.text


def fate_of_loser(how: str) -> Callable[[Delivery], Any]:
    """Return what a task does after its lease is gone."""
    return {
        "returns": lambda _: "late",
        "raises": lambda _: (_ for _ in ()).throw(ValueError("late")),
        "rejects": lambda _: (_ for _ in ()).throw(Reject("late", requeue=True)),
        "ignores": lambda _: (_ for _ in ()).throw(Ignore),
        "times out": lambda _: (_ for _ in ()).throw(SoftTimeLimitExceeded()),
    }[how]


LOSERS = ["returns", "raises", "rejects", "ignores", "times out"]


@pytest.mark.parametrize("how", LOSERS)
@pytest.mark.parametrize("loss", ["expire", "taken", "nearly_expire"])
def test_the_outcome_of_a_loser_is_thrown_away(
    app: Celery, delivery: Delivery, how: str, loss: str
) -> None:
    """I3: nothing is stored, no link and no errback is sent, no hook is called.

    Seen to fail without the check of may_act() in outcome.py.
    """
    hooks = []

    class Hooked(LeasedTask):
        abstract = True

        def on_success(self, *_: Any) -> None:
            hooks.append("success")

        def on_failure(self, *_: Any) -> None:
            hooks.append("failure")

        def after_return(self, *_: Any) -> None:
            hooks.append("return")

    @leased(app, base=Hooked, autoretry_for=(Exception,))
    def f() -> Any:
        getattr(delivery, loss)()
        return fate_of_loser(how)(delivery)

    links = [app.signature("other").set(task_id="link")]
    info = delivery.trace(f, request={"callbacks": links, "errbacks": links}).info
    assert isinstance(info.retval, Discarded)
    assert delivery.state(f) == "PENDING"
    assert sent(app) == []
    assert hooks == []
    assert delivery.asked == (0 if loss == "taken" else 1)


@pytest.mark.parametrize("loss", ["expire", "nearly_expire"])
@pytest.mark.parametrize(("how", "expected"), [("returns", "SUCCESS"), ("raises", "FAILURE")])
def test_a_late_outcome_counts_if_the_broker_confirms_the_lease(
    app: Celery, delivery: Delivery, loss: str, how: str, expected: str
) -> None:
    """Nobody took the message in the meantime, so the work was not in vain."""
    delivery.broker_says = True

    @leased(app)
    def f() -> Any:
        getattr(delivery, loss)()
        return fate_of_loser(how)(delivery)

    delivery.trace(f)
    assert delivery.state(f) == expected
    assert delivery.asked == 1


@pytest.mark.parametrize("swallow", [False, True])
def test_a_run_that_was_told_of_its_loss_is_never_confirmed(
    app: Celery, delivery: Delivery, *, swallow: bool
) -> None:
    """It stopped in the middle: a failure or half a result must not end the message."""
    delivery.broker_says = True

    @leased(app, autoretry_for=(Exception,))
    def f(*, context: ToolContext) -> str:
        delivery.expire()
        try:
            context.beat()
        except LeaseLost:
            if not swallow:
                raise RuntimeError("tool failed") from None
        return "half"

    assert isinstance(delivery.trace(f).info.retval, Discarded)
    assert delivery.state(f) == "PENDING"
    assert sent(app) == []
    assert delivery.asked == 0


def test_an_author_may_give_the_lease_up(app: Celery, delivery: Delivery) -> None:
    """LeaseLost raised by the task itself, as when a store refused its fencing token."""
    delivery.broker_says = True

    @leased(app, autoretry_for=(Exception,))
    def f() -> None:
        raise LeaseLost

    assert isinstance(delivery.trace(f).info.retval, Discarded)
    assert delivery.state(f) == "PENDING"


def test_a_lost_lease_is_raised_again_at_every_beat(app: Celery, delivery: Delivery) -> None:
    """A broad ``except Exception`` around one tool does not hide it from the next."""
    raised = []

    @leased(app)
    def f(*, context: ToolContext) -> None:
        delivery.taken()
        for _ in range(3):
            try:
                context.beat()
            except Exception as exc:  # noqa: BLE001  (as authors do)
                raised.append(type(exc))

    delivery.trace(f)
    assert raised == [LeaseLost] * 3


def test_a_run_that_starts_after_its_lease_does_nothing(app: Celery, delivery: Delivery) -> None:
    """A task that waited too long in the pool is not begun."""
    ran = []

    @leased(app)
    def task() -> None:
        ran.append(1)

    delivery.expire()
    assert isinstance(delivery.trace(task).info.retval, Discarded)
    assert ran == []


def test_a_run_whose_main_process_is_gone_does_nothing(app: Celery, delivery: Delivery) -> None:
    """There is nobody to keep its lease."""
    ran = []

    @leased(app)
    def task() -> None:
        ran.append(1)

    delivery.ticket["board"] = "/proc/self/fd/999999"
    assert isinstance(delivery.trace(task).info.retval, Discarded)
    assert ran == []


@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.parametrize("what", ["retry", "replace", "autoretry"])
def test_a_loser_sends_no_successor(
    app: Celery, delivery: Delivery, what: str, *, swallow: bool
) -> None:
    """I4: a retry or a replacement by a former holder would run the work twice.

    Seen to fail without LeasedTask._hold() (autoretry: with a Discarded that is no Ignore).
    """
    options = {"autoretry_for": (ValueError,)} if what == "autoretry" else {}

    @leased(app, bind=True, default_retry_delay=0, **options)
    def f(self: Task[Any, Any]) -> Any:
        delivery.expire()
        if what == "autoretry":
            raise ValueError
        try:
            if what == "retry":
                self.retry(exc=ValueError())
            self.replace(chain(app.signature("a"), app.signature("b")))
        except LeaseLost:
            if not swallow:
                raise

    assert isinstance(delivery.trace(f).info.retval, Discarded)
    assert sent(app) == []
    assert delivery.state(f) == "PENDING"


def test_a_holder_retries_and_the_next_message_carries_no_lease(
    app: Celery, delivery: Delivery
) -> None:
    """Also with a named exchange, where Celery copies all that it knows of the delivery."""

    @leased(app, bind=True)
    def f(self: Task[Any, Any]) -> None:
        self.retry(countdown=0)

    info = {"exchange": "celery", "routing_key": "celery", "lease": delivery.ticket}
    for facts in ({}, {"delivery_info": info}):
        delivery.trace(f, request={"args": (), "kwargs": {}, **facts})
        (message,) = sent(app)
        assert delivery.state(f) == "RETRY"
        assert "ticket" not in json.dumps([message.headers, message.properties])
        assert delivery.board.address not in json.dumps([message.headers, message.properties])


def test_a_loser_stores_no_state(app: Celery, delivery: Delivery) -> None:
    """``update_state`` of a former holder would overwrite what the new one reports."""
    other = delivery.task_id + "-other"

    @leased(app, bind=True)
    def f(self: Task[Any, Any]) -> None:
        self.update_state(state="ONE")
        self.update_state(other, "OTHER")
        delivery.taken()
        with pytest.raises(LeaseLost):
            self.update_state(state="TWO")
        self.update_state(task_id=other, state="OTHER TWO")

    delivery.trace(f)
    assert delivery.state(f) == "ONE"
    assert str(f.AsyncResult(other).state) == "OTHER TWO"


def test_with_continue_a_loser_runs_on_and_changes_nothing(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``lease_on_lost="continue"``: beats and states pass silently, ack and result are fenced."""
    delivery = Delivery(monkeypatch, on_lost="continue")
    done = []

    @leased(app, bind=True)
    def f(self: Task[Any, Any], *, context: ToolContext) -> str:
        delivery.taken()
        context.beat()
        self.update_state(state="LATE")
        done.append(1)
        return "late"

    assert isinstance(delivery.trace(f).info.retval, Discarded)
    assert done == [1]
    assert delivery.state(f) == "PENDING"


def test_with_observe_nothing_is_enforced(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """``lease_mode="observe"``: the run counts whatever the board says."""
    delivery = Delivery(monkeypatch, mode="observe")

    @leased(app)
    def f(*, context: ToolContext) -> str:
        delivery.expire()
        context.beat()
        return "fine"

    assert delivery.trace(f).retval == "fine"
    assert delivery.asked == 0


def test_an_interrupted_run_hands_its_message_over(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ShutdownRequested becomes an outcome that autoretry lets pass."""
    delivery = Delivery(monkeypatch, interruptible=True)

    @leased(app, autoretry_for=(Exception,))
    def f(*, context: ToolContext) -> None:
        delivery.shut_down()
        with pytest.raises(ShutdownRequested):
            context.beat()
        context.beat()

    outcome = delivery.trace(f).info.retval
    assert isinstance(outcome, HandedOver)
    assert sent(app) == []


def test_outcomes_of_losers_survive_the_way_to_the_main_process(
    app: Celery, delivery: Delivery
) -> None:
    """Whatever the author's exception is made of: only a text of it travels."""

    class Unpicklable(Exception):
        def __init__(self) -> None:
            super().__init__(lambda: None)

    @leased(app)
    def f() -> None:
        delivery.taken()
        raise Unpicklable

    discarded = pickle.loads(pickle.dumps(delivery.trace(f).info.retval))  # noqa: S301
    assert isinstance(discarded, Discarded)
    assert "Unpicklable" in str(discarded)
    handed = pickle.loads(pickle.dumps(HandedOver("why")))  # noqa: S301
    assert (type(handed), str(handed)) == (HandedOver, "why")


@pytest.mark.parametrize("how", ["call", "apply", "run"])
def test_a_leased_task_called_inside_another_beats_for_the_outer_lease(
    app: Celery, delivery: Delivery, how: str
) -> None:
    """The work goes on, whoever's code it is; a loss is everybody's."""

    @leased(app)
    def inner(*, context: ToolContext) -> Any:
        return context

    @leased(app)
    def outer(*, context: ToolContext) -> Any:
        call = {"call": inner, "apply": lambda: inner.apply().result, "run": inner.run}[how]
        return call() is context, current_context() is context

    assert delivery.trace(outer).retval == (True, True)
    assert active_context() is None


def test_a_message_cannot_forge_a_context(app: Celery, delivery: Delivery) -> None:
    """A foreign message with an argument of that name fails, as with any unexpected one."""

    @leased(app)
    def f(*, context: ToolContext) -> Any:
        return context

    assert isinstance(delivery.trace(f, context={"forged": 1}).info.retval, TypeError)


def test_the_context_of_a_run_does_not_outlive_it(app: Celery, delivery: Delivery) -> None:
    """Neither the context nor what the task held is kept once it has ended."""
    import gc
    import weakref

    class Big:
        pass

    kept = []

    @leased(app)
    def f(*, context: ToolContext) -> None:
        big = Big()
        kept.append(weakref.ref(big))
        kept.append(weakref.ref(context))
        delivery.taken()
        context.beat()

    delivery.trace(f)
    gc.collect()
    assert [each() for each in kept] == [None, None]


@pytest.mark.parametrize("end", ["success", "failure", "retry"])
def test_a_run_leaves_no_finalizer_behind(
    app: Celery, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Celery makes one at each ``Signal.connect()``, and the process would grow with its runs."""
    import weakref

    @leased(app, bind=True, max_retries=None)
    def f(self: Any) -> None:
        if end == "failure":
            raise ValueError
        if end == "retry":
            self.retry(countdown=0)

    def finalizers() -> int:
        return len(weakref.finalize._registry)  # type: ignore[attr-defined]

    delivery = Delivery(monkeypatch, deliveries=2)  # a checkpoint may be there, and is watched
    delivery.trace(f)  # the first run of a process connects the receivers
    before = finalizers()
    for _ in range(5):
        delivery.trace(f)
    assert finalizers() == before
