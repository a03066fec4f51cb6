"""Cancelling: what a worker does about each task, what its process makes of it, who is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, states
from celery.exceptions import Ignore, TaskRevokedError
from celery.signals import task_revoked
from celery.utils.timer2 import Timer
from celery.worker import state

from celery_lease import LeasedTask, TaskCancelled, ToolContext, board as beatboard
from celery_lease.core.loss import FLAG_CANCELLED, FLAG_LOST
from celery_lease.task.outcome import Cancelled, Discarded
from celery_lease.worker import cancel as cancelling, compat, control
from unit.leased_runs import Delivery, sent
from unit.worker.test_request import Bench as RequestBench

if TYPE_CHECKING:
    from unit.fake_broker import Bench


def states_of(done: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return what was done about each task, in a word."""
    return {task_id: what["state"] for task_id, what in done.items()}


# In the worker.


def test_each_task_is_dealt_with_by_where_it_is(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told, settled, known as lost or plain, or unknown; all of them refused from now on."""
    settled: list[str] = []
    monkeypatch.setattr(compat, "revoke_waiting", lambda _, tag: not settled.append(tag))
    monkeypatch.setattr(
        compat, "plain_tasks", lambda ids: [each for each in ids if each == "plain"]
    )
    late = bench.run("late")
    bench.passed(11.0)
    running = bench.run("running")
    bench.receive("pooled")
    bench.leases.start("pooled")
    bench.receive("waiting")
    ids = ["id-running", "id-pooled", "id-waiting", "id-late", "plain", "x"]
    done = cancelling.cancel(bench.leases, ids, SimpleNamespace())
    said = ["told", "told", "revoked", "lost", "plain", "unknown"]
    assert states_of(done) == dict(zip(ids, said, strict=True))
    assert settled == ["waiting"]
    for tag in ("running", "pooled"):
        assert bench.flags_of(bench.held(tag)) == FLAG_CANCELLED
    assert bench.flags_of(late) == FLAG_LOST
    assert bench.gate(running) == 0.0
    assert all(each in state.revoked for each in ids)


def test_the_backup_control_leaves_what_waits_to_the_main_loop(bench: Bench) -> None:
    """Requests are its; it finds them refused when their time comes."""
    bench.receive()
    runtime = SimpleNamespace(leases=bench.leases)
    worker = SimpleNamespace(
        consumer=SimpleNamespace(lease_runtime=runtime), lease_heard_at=bench.clock.now()
    )
    reply = control.lease_cancel(worker, task_id="id-a")
    assert states_of(reply["tasks"]) == {"id-a": "waits"}
    assert reply["ok"] == "1 of 1 task is here"
    assert control.lease_cancel(SimpleNamespace(consumer=None), task_id="x") == control.NO_LEASES


def test_a_cancelled_task_keeps_its_lease_while_it_cleans_up(bench: Bench) -> None:
    """The keeper goes on extending for the beat at which it was told."""
    held = bench.run()
    cancelling.cancel(bench.leases, ["id-a"], None)
    bench.clock.advance(5.0)
    bench.beat(held)
    assert bench.passed().extended == 1
    assert held.lease.deadline == bench.clock.now() + 10.0
    assert bench.flags_of(held) == FLAG_CANCELLED


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_waiting_request_is_revoked_as_celery_does(app: Celery, *, scheduled: bool) -> None:
    """Result, event and acknowledgement now; nothing more when its time comes."""
    bench = RequestBench(app, send_events=True)
    timer = Timer()
    timer.call_at(10**10, id, (bench.request,))
    timer.call_after(600, id)
    if scheduled:
        state.reserved_requests.discard(bench.request)
    worker: Any = SimpleNamespace(timer=timer)
    assert not compat.revoke_waiting(worker, "another")
    compat.refuse(bench.request.id)
    assert compat.revoke_waiting(worker, "tag")
    timer.stop()
    assert (bench.state, bench.events) == (states.REVOKED, ["task-revoked"])
    assert bench.leases.end == "completed"
    assert not bench.is_open()
    with pytest.raises(TaskRevokedError):
        bench.request.execute_using_pool(bench.pool)
    bench.pool.apply_async.assert_not_called()


# In the task process.


def cancelled_at(delivery: Delivery) -> None:
    """Have the task told at its next beat."""
    delivery.board.flag(delivery.slot, FLAG_CANCELLED)


def beating(app: Celery, delivery: Delivery, **options: Any) -> Any:
    """Return a task that is cancelled after its first beat."""

    @app.task(base=LeasedTask, shared=False, lazy=False, **options)
    def task(*, context: ToolContext) -> None:
        context.beat()
        cancelled_at(delivery)
        context.beat()

    return task


def test_a_cancelled_run_is_stored_as_revoked_before_it_is_over(
    app: Celery, delivery: Delivery
) -> None:
    """No callback, no retry; the main process may acknowledge, and whoever waits is told."""
    task = beating(app, delivery, autoretry_for=(Exception,))
    link = app.signature("after").set(immutable=True)
    traced = delivery.trace(task, request={"callbacks": [link], "errbacks": [link]})
    assert isinstance(traced.info.retval, Cancelled)
    result = task.AsyncResult(delivery.task_id)
    assert result.state == states.REVOKED
    with pytest.raises(TaskRevokedError, match="cancelled"):
        result.get(timeout=1)
    assert sent(app) == []
    assert delivery.board.read_outcome(delivery.slot) is beatboard.Outcome.DONE
    assert isinstance(Cancelled("x"), Ignore)


def test_a_run_cancelled_before_it_began_does_nothing(app: Celery, delivery: Delivery) -> None:
    """It waited for a process; its own code is not entered."""
    entered = []

    @app.task(base=LeasedTask, shared=False, lazy=False)
    def task() -> None:
        entered.append(1)

    cancelled_at(delivery)
    delivery.trace(task)
    assert not entered
    assert delivery.state(task) == states.REVOKED


def test_a_cancelled_loser_is_a_loser(app: Celery, delivery: Delivery) -> None:
    """The message is somebody else's, who is cancelled or not for himself."""

    @app.task(base=LeasedTask, shared=False, lazy=False)
    def task(*, context: ToolContext) -> None:
        cancelled_at(delivery)
        try:
            context.beat()
        finally:
            delivery.expire()

    traced = delivery.trace(task)
    assert isinstance(traced.info.retval, Discarded)
    assert delivery.state(task) == states.PENDING


def test_a_cancelled_task_that_returns_has_finished(app: Celery, delivery: Delivery) -> None:
    """Its author knows best what a half of the work is worth."""

    @app.task(base=LeasedTask, shared=False, lazy=False)
    def task(*, context: ToolContext) -> str:
        cancelled_at(delivery)
        try:
            context.beat()
        except TaskCancelled:
            return f"half, {context.cancelled}"
        return "all"

    assert delivery.trace(task).retval == "half, True"
    assert delivery.state(task) == states.SUCCESS


@pytest.mark.parametrize("way", ["retry", "replace"])
def test_a_cancelled_task_sends_no_successor(app: Celery, delivery: Delivery, way: str) -> None:
    """``except Exception: retry`` is everywhere; it would undo the cancelling."""

    @app.task(base=LeasedTask, shared=False, lazy=False, bind=True, name="t")
    def task(self: Any, *, context: ToolContext) -> None:
        cancelled_at(delivery)
        try:
            context.beat()
        except Exception as exc:
            raise self.retry(exc=exc) if way == "retry" else self.replace(self.s()) from exc

    delivery.trace(task)
    assert delivery.state(task) == states.REVOKED
    assert sent(app) == []


def test_results_that_nobody_wants_are_not_stored(app: Celery, delivery: Delivery) -> None:
    """As with Celery's own revoke."""
    task = beating(app, delivery, ignore_result=True)
    delivery.trace(task, request={"ignore_result": True})
    assert delivery.state(task) == states.PENDING


def test_a_backend_that_is_away_is_asked_until_it_has_stored_that(
    app: Celery, delivery: Delivery, caplog: pytest.LogCaptureFixture
) -> None:
    """I5: whoever waits for the result learns that there will be none; only then is it over."""
    task = beating(app, delivery)
    away = [OSError("away"), OSError("away")]
    store = task.backend._store_result

    def fail(*args: Any, **options: Any) -> Any:
        if away:
            raise away.pop()
        return store(*args, **options)

    task.backend._store_result = fail
    traced = delivery.trace(task)
    assert isinstance(traced.info.retval, Cancelled)
    assert delivery.state(task) == states.REVOKED
    assert delivery.board.read_outcome(delivery.slot) is beatboard.Outcome.DONE
    assert caplog.text.count("the result backend does not store that (OSError: away)") == 1


# In the worker again.


def test_monitors_hear_of_a_revoked_task(app: Celery) -> None:
    """Event and signal as for any revoked task; acknowledged; what is stored is not stored anew."""
    bench = RequestBench(app, send_events=True)
    heard: list[Any] = []

    def hear(request: Any = None, **facts: Any) -> None:
        heard.append((request.id, facts["terminated"], facts["expired"]))

    task_revoked.connect(hear)
    try:
        bench.failed(Cancelled("x"), stored=True)
    finally:
        task_revoked.disconnect(hear)
    assert bench.events == ["task-revoked"]
    assert heard == [(bench.request.id, False, False)]
    assert (bench.leases.end, bench.state) == ("completed", states.PENDING)
    assert not bench.is_open()
