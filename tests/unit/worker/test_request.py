"""A leased task's request: what each end that Celery knows means for the lease."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from billiard.einfo import ExceptionInfo
from celery.exceptions import (
    Ignore,
    Reject,
    TaskRevokedError,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.utils import log
from celery.worker import state
from celery.worker.request import create_request_cls

from celery_lease import LeasedTask
from celery_lease.board import BoardFull, Outcome
from celery_lease.board.spans import Span
from celery_lease.core.loss import LossReason
from celery_lease.task.outcome import Discarded, HandedOver, NotStored, OutOfReach
from celery_lease.worker.entries import Ending, LeaseHandle
from celery_lease.worker.intake import Intake
from celery_lease.worker.pools.prefork import Prefork
from celery_lease.worker.request import LeasedRequest
from unit.fake_broker import Bench as LeaseBench
from unit.leased_runs import make_app, message_of

if TYPE_CHECKING:
    from celery import Celery, Task

#: The number of no process.
NOBODY = 2**22 + 1
COMPLETED, DROPPED, HELD = "completed", "dropped", "held"
RELEASED, LOST = "released", "released as a loss"


class Leases:
    """A worker's leases as far as a request asks, for one lease."""

    worker_id = "w1@host:1:abc"
    publishes = False

    def __init__(self) -> None:
        self.end = HELD
        self.lost = False
        self.intake = Intake()
        self.ticket: Any = {"tag": "tag"}
        self.ended: list[str] = []
        self.hurries = 0

    def start(self, _tag: str) -> Any:
        if isinstance(self.ticket, Exception):
            raise self.ticket
        return self.ticket

    def is_storing(self, _tag: str) -> bool:
        return False

    def end_soon(self, tag: str, *, storing: bool) -> None:
        assert not storing
        self.ended.append(tag)

    def hurry(self) -> None:
        self.hurries += 1

    def accepted(self, _tag: str, _pid: Any) -> None: ...

    def is_lost(self, _tag: str) -> bool:
        return self.lost or self.end != HELD

    def knows(self, _tag: str) -> bool:
        return self.end == HELD

    def process_ended(self, _tag: str, _cause: object) -> None: ...

    def on_end(self, _tag: str) -> None: ...

    def complete(self, _tag: str) -> None:
        self._end(COMPLETED)

    def drop(self, _tag: str) -> None:
        self._end(DROPPED)

    def requeue(
        self,
        _tags: Any,
        *,
        orderly: bool = True,
        ending: Ending = Ending.HANDED_OVER,
        **_: Any,
    ) -> None:
        assert ending in ({Ending.HANDED_OVER} if orderly else {Ending.LOST, Ending.PROCESS_DIED})
        self.ending = ending
        self._end(RELEASED if orderly else LOST)

    def not_stored(self, _tag: str) -> None:
        self._end(LOST)

    def discard(self, _tag: str) -> None:
        self._end(LOST if self.intake.is_open else RELEASED)

    def _end(self, end: str) -> None:
        if self.end == HELD:
            self.end = end


class Bench:
    """A request of a task, its lease, and the events and results that come of it."""

    def __init__(self, app: Celery, **options: Any) -> None:
        @app.task(base=LeasedTask, shared=False, lazy=False, name=uuid.uuid4().hex, **options)
        def task() -> None: ...

        self.task: Task[Any, Any] = task
        self.leases = Leases()
        self.pool = Mock()
        self.events: list[str] = []
        self.fields: list[dict[str, Any]] = []
        message = message_of(task, uuid.uuid4().hex)
        eventer = Mock(enabled=True, send=self._event)
        cls = create_request_cls(LeasedRequest, task, self.pool, "w@unit", eventer, app=app)
        self.request = cls(message, app=app, task=task, eventer=eventer, hostname="w@unit")
        self.request.lease = LeaseHandle(self.leases, "tag")  # type: ignore[arg-type]
        self.acked, self.rejected = Mock(), Mock()
        self.request._on_ack, self.request._on_reject = self.acked, self.rejected
        state.task_reserved(self.request)

    def _event(self, event: str, **fields: Any) -> None:
        self.events.append(event)
        self.fields.append(fields)

    @property
    def state(self) -> str:
        return str(self.task.AsyncResult(self.request.id).state)

    def failed(self, exc: BaseException, *, stored: bool = False) -> None:
        """Let the pool tell of a failure; *stored*: the task process dealt with it."""
        info = _raised(exc)
        if stored:
            self.request.on_success((1, info, 0.1))
        else:
            self.request.on_failure(info)

    def is_open(self) -> bool:
        """Tell whether the worker still counts the request, or its place in the window."""
        known = self.request in state.reserved_requests
        return known or not (self.acked.called or self.rejected.called)


def _raised(exc: BaseException) -> ExceptionInfo:
    with pytest.raises(type(exc)) as caught:
        raise exc
    return ExceptionInfo((caught.type, caught.value, caught.tb))


@pytest.fixture
def app() -> Celery:
    """An app of one test."""
    return make_app()


@pytest.mark.parametrize("stored", [True, False])
def test_a_failure_in_the_workers_own_process_is_told_bare(
    app: Celery, stored: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """No ``ExceptionWithTraceback`` in the event, and one traceback in the log.

    Failed with: ExceptionWithTraceback() in the event, and two tracebacks.
    """
    bench = Bench(app)
    bench.failed(ValueError("no film"), stored=stored)
    (failed,) = (
        fields
        for event, fields in zip(bench.events, bench.fields, strict=True)
        if event == "task-failed"
    )
    assert failed["exception"] == "ValueError('no film')"
    assert "ExceptionWithTraceback" not in caplog.text
    assert caplog.text.count("Traceback (most recent call last)") == (0 if stored else 1)


def test_the_ticket_goes_with_the_request_to_the_pool(app: Celery) -> None:
    """What the task process needs is in the request's delivery info."""
    bench = Bench(app)
    bench.request.execute_using_pool(bench.pool)
    (_, _, sent, *_) = bench.pool.apply_async.call_args.kwargs["args"]
    assert sent["delivery_info"]["lease"] == {"tag": "tag"}
    assert bench.request.info()["delivery_info"]["lease"] == {"tag": "tag"}


@pytest.mark.parametrize(("ticket", "end"), [(None, LOST), (BoardFull(), RELEASED)])
def test_a_request_without_a_lease_to_start_on_is_not_started(
    app: Celery, ticket: Any, end: str
) -> None:
    """Its lease ran out while it waited, or too many tasks run; the message is elsewhere."""
    bench = Bench(app)
    bench.leases.ticket = ticket
    with pytest.raises(TaskRevokedError):
        bench.request.execute_using_pool(bench.pool)
    bench.pool.apply_async.assert_not_called()
    assert bench.leases.end == end
    assert not bench.is_open()
    assert (bench.events, bench.state) == ([], "PENDING")


def test_success_completes_the_lease_before_the_loop_turns(app: Celery) -> None:
    """The message is settled at once; Celery's own ack only frees its place."""
    bench = Bench(app)
    bench.acked.side_effect = lambda *_: bench.events.append(f"acked, {bench.leases.end}")
    bench.request.on_success((0, "1", 0.1))
    assert bench.events == ["acked, completed", "task-succeeded"]


@pytest.mark.parametrize(
    ("exc", "stored", "end"),
    [
        (ValueError("x"), True, COMPLETED),
        (Ignore(), True, COMPLETED),
        (Reject("x", requeue=False), True, DROPPED),
        (Reject("x", requeue=True), True, RELEASED),
        (HandedOver("x"), True, RELEASED),
        (WorkerLostError("x"), False, LOST),
        (TimeLimitExceeded(1), False, COMPLETED),
        (Terminated(15), False, COMPLETED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_every_end_settles_the_lease(
    app: Celery, exc: Exception, *, stored: bool, end: str
) -> None:
    """I5: completed, or back in the queue; a crash counts as a loss, a wish does not."""
    bench = Bench(app)
    bench.failed(exc, stored=stored)
    assert bench.leases.end == end
    assert not bench.is_open()


@pytest.mark.parametrize("exc", [Terminated(9), WorkerLostError("signal 9 (SIGKILL)")])
def test_a_task_that_its_worker_killed_is_no_revoked_one(app: Celery, exc: Exception) -> None:
    """The main loop may learn of the end before the keeper, and releases the message as it would.

    Failed before: Celery stored REVOKED, and acknowledged a message that was to run again.
    """
    worker = LeaseBench()
    held = worker.run("tag", pid=NOBODY)
    bench = Bench(app, send_events=True)
    bench.request.lease = LeaseHandle(worker.leases, "tag", 1, held)
    pool: Any = SimpleNamespace(terminate_job=lambda *_: bench.failed(exc))
    adapter: Any = SimpleNamespace(celery_pool=pool)
    assert Prefork.end(adapter, held, lambda: worker.leases.requeue(["tag"]))
    assert (worker.driver.sent("complete"), worker.driver.sent("requeue")) == ([], ["tag"])
    assert (bench.events, bench.state) == ([], "PENDING")
    assert not bench.is_open()
    worker.leases.close()


def test_a_time_limit_that_is_to_requeue_counts_as_a_loss(app: Celery) -> None:
    """``acks_on_failure_or_timeout=False``: else a task that always hangs goes round for ever."""
    bench = Bench(app, acks_on_failure_or_timeout=False)
    bench.failed(TimeLimitExceeded(1))
    assert bench.leases.end == LOST


@pytest.mark.parametrize("exc", [WorkerLostError("x"), TimeLimitExceeded(1), MemoryError()])
def test_a_death_after_the_lease_ended_is_no_failure(app: Celery, exc: Exception) -> None:
    """I3: no result, no event, nothing sent, and the message stays with its new holder.

    Seen to fail without _came_to_nothing() in request.py.
    """
    bench = Bench(app)
    bench.leases.lost = True
    bench.failed(exc)
    assert (bench.state, bench.events) == ("PENDING", [])
    assert bench.leases.end == LOST
    assert not bench.is_open()


def test_a_hard_limit_after_the_lease_ended_is_no_failure(app: Celery) -> None:
    """A pool tells of it twice, or by on_timeout() alone; neither stores anything."""
    for calls in (("failure", "timeout"), ("timeout",)):
        bench = Bench(app)
        bench.leases.lost = True
        if "failure" in calls:
            bench.failed(TimeLimitExceeded(1))
        bench.request.on_timeout(False, 1)  # noqa: FBT003
        assert (bench.state, bench.events) == ("PENDING", [])
        assert bench.leases.end == LOST


def test_a_hard_limit_under_a_lease_is_a_failure(app: Celery) -> None:
    """Although its lease has ended with the first of the two calls."""
    bench = Bench(app)
    bench.failed(TimeLimitExceeded(1))
    bench.request.on_timeout(False, 1)  # noqa: FBT003
    assert bench.state == "FAILURE"
    assert bench.leases.end == COMPLETED


def test_a_discarded_outcome_ends_the_request_quietly(app: Celery) -> None:
    """What the task process threw away is not an ``Ignore`` that acknowledges."""
    bench = Bench(app)
    bench.failed(Discarded("x"), stored=True)
    assert (bench.state, bench.events) == ("PENDING", [])
    assert bench.leases.end == LOST
    assert not bench.is_open()


def test_a_process_that_cannot_reach_the_worker_is_no_loss_of_its_task(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The installation is at fault: the message goes back, and the worker stops with an error."""
    stopped = Mock()
    monkeypatch.setattr("celery_lease.worker.poison.compat.stop_worker", stopped)
    bench = Bench(app)
    for _ in range(2):
        bench.failed(OutOfReach("[Errno 13] Permission denied: '/tmp/x'"), stored=True)
    assert (bench.state, bench.events) == ("PENDING", [])
    assert bench.leases.end == RELEASED
    assert not bench.is_open()
    stopped.assert_called_once_with()
    (line,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "Permission denied: '/tmp/x'" in line.getMessage()


def test_an_outcome_stored_in_time_counts_though_the_lease_ended_since(app: Celery) -> None:
    """The task process made sure of its lease; telling the main process took a while."""
    bench = Bench(app)
    bench.leases.lost = True
    bench.failed(ValueError("x"), stored=True)
    assert "task-failed" in bench.events
    assert bench.leases.end == COMPLETED


def test_a_task_that_celery_cancelled_goes_back(app: Celery) -> None:
    """Celery leaves its message to the broker's redelivery, which a held lease prevents.

    I5; seen to fail without the reject after Celery's own on_failure().
    """
    bench = Bench(app)
    bench.request._already_cancelled = True
    bench.failed(Terminated(15))
    assert bench.leases.end == RELEASED
    assert not bench.is_open()


def _pool(kind: str) -> Any:
    facts = {"__module__": f"celery.concurrency.{kind}", "terminate_job": Mock()}
    return type("TaskPool", (), facts)()


def test_a_cold_shutdown_kills_the_process_of_a_task_and_returns_its_message(app: Celery) -> None:
    """The message goes back once, by the keeper: nothing is sent inside of a signal handler."""
    bench, pool = Bench(app), _pool("prefork")
    bench.request.on_accepted(4711, 1.0)
    with log.in_sighandler():
        bench.request.cancel(pool)
    assert pool.terminate_job.call_args.args[0] == 4711
    assert (bench.leases.ended, bench.leases.hurries) == (["tag"], 0)


@pytest.mark.parametrize("kind", ["thread", "solo", "gevent", "eventlet"])
def test_a_cold_shutdown_leaves_a_task_of_another_pool_no_time(app: Celery, kind: str) -> None:
    """Celery's attempt to kill it would fail the task that the signal interrupted (solo), or
    count as its success (gevent, eventlet).
    """
    bench, pool = Bench(app), _pool(kind)
    bench.request.on_accepted(4711, 1.0)
    with log.in_sighandler():
        bench.request.cancel(pool)
    assert not pool.terminate_job.called
    assert (bench.leases.ended, bench.leases.hurries) == ([], 1)


def test_a_lost_connection_cancels_no_leased_task(app: Celery) -> None:
    """A lease outlives the connection, also where Celery cancels on its loss."""
    bench, pool = Bench(app), _pool("prefork")
    bench.request.on_accepted(4711, 1.0)
    bench.request.cancel(pool)
    assert not pool.terminate_job.called
    assert (bench.leases.ended, bench.leases.hurries) == ([], 0)


def away(*_: Any, **__: Any) -> None:
    """Fail as a result backend does whose server is away."""
    raise OSError("away")


def test_a_cold_shutdown_goes_on_although_a_backend_is_away(app: Celery) -> None:
    """Celery's handler would end at the error, and its worker not stop: the rest is still done."""
    bench, pool = Bench(app), _pool("prefork")
    bench.task.backend.store_result = away
    bench.request.on_accepted(4711, 1.0)
    with log.in_sighandler():
        bench.request.cancel(pool)
    assert pool.terminate_job.called
    assert bench.leases.ended == ["tag"]


@pytest.mark.parametrize("exc", [TimeLimitExceeded(1), RuntimeError("of the pool")])
def test_what_the_main_process_cannot_store_is_not_acknowledged(
    app: Celery, exc: Exception
) -> None:
    """I5: Celery acknowledges first; the message goes back, as a loss."""
    bench = Bench(app)
    bench.task.backend.store_result = away
    with pytest.raises(OSError, match="away"):
        bench.failed(exc)
    assert bench.leases.end == LOST
    assert not bench.is_open()


def test_a_revoked_task_that_cannot_be_stored_is_not_acknowledged(app: Celery) -> None:
    """Who waits for its result would wait for ever."""
    bench = Bench(app)
    bench.task.backend.store_result = away
    state.revoked.add(bench.request.id)
    with pytest.raises(OSError, match="away"):
        bench.request.revoked()
    assert bench.leases.end == LOST


def test_what_the_main_process_stores_is_acknowledged_afterwards(app: Celery) -> None:
    """A hard time limit is a failure as before, in another order."""
    bench = Bench(app)
    seen: list[str] = []
    store = bench.task.backend.store_result

    def note(*args: Any, **options: Any) -> Any:
        seen.append(bench.leases.end)
        return store(*args, **options)

    bench.task.backend.store_result = note
    bench.failed(TimeLimitExceeded(1))
    assert (seen, bench.leases.end, bench.state) == ([HELD], COMPLETED, "FAILURE")


def test_a_result_that_its_process_could_not_store_goes_back(app: Celery) -> None:
    """As a loss; Celery tells and stores nothing."""
    bench = Bench(app, send_events=True)
    bench.failed(NotStored("in time"), stored=True)
    assert (bench.leases.end, bench.state, bench.events) == (LOST, "PENDING", [])
    assert not bench.is_open()


@pytest.mark.parametrize("exc", [WorkerLostError("killed"), TimeLimitExceeded(1), Reject("x")])
def test_what_ends_a_hook_changes_nothing(app: Celery, exc: Exception) -> None:
    """The outcome was stored before: the message is settled by that, whoever hears of it first."""
    worker = LeaseBench()
    held = worker.run("tag")
    bench = Bench(app, send_events=True)
    bench.request.lease = LeaseHandle(worker.leases, "tag", 1, held)
    worker.board.write_outcome(held.slot, Outcome.DONE)
    bench.failed(exc)
    bench.request.on_timeout(soft=False, timeout=1)
    assert worker.driver.sent("complete") == ["tag"]
    assert worker.driver.sent("requeue") == []
    assert (bench.events, bench.state) == ([], "PENDING")
    assert not bench.is_open()
    worker.leases.close()


def test_a_cold_shutdown_leaves_what_is_over_to_the_keeper(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is told the broker inside of a signal handler, and nothing cancelled."""
    monkeypatch.setattr(log, "_in_sighandler", True)
    worker = LeaseBench()
    held = worker.run("tag")
    bench = Bench(app)
    bench.request.lease = LeaseHandle(worker.leases, "tag", 1, held)
    worker.board.write_outcome(held.slot, Outcome.DONE)
    bench.request.cancel(bench.pool)
    assert worker.driver.calls == []
    assert worker.leases.knows("tag")
    worker.leases.close()


def test_a_cold_shutdown_counts_what_is_not_stored_as_a_loss() -> None:
    """The work was done."""
    worker = LeaseBench()
    held = worker.run("tag")
    worker.enter(held, Span.RETRYING)
    worker.leases.end_soon("tag", storing=worker.leases.is_storing("tag"))
    worker.leases.outbox.again()
    (call,) = [each for each in worker.driver.calls if each.name == "requeue"]
    assert (call.what, call.options["orderly"]) == (["tag"], False)
    assert held.lease.lost is LossReason.RESULT_NOT_STORED
    worker.leases.close()


def test_a_task_that_a_cold_shutdown_ends_in_its_body_has_lost_no_result(app: Celery) -> None:
    """Breaks when its process, on its way out of the body, is taken for one that stores."""
    worker, pool = LeaseBench(), _pool("prefork")
    held = worker.run("tag")
    bench = Bench(app)
    bench.request.on_accepted(4711, 1.0)
    bench.request.lease = LeaseHandle(worker.leases, "tag", 1, held)
    pool.terminate_job.side_effect = lambda *_: worker.enter(held, Span.STORING)
    with log.in_sighandler():
        bench.request.cancel(pool)
    assert pool.terminate_job.called
    worker.leases.outbox.again()
    (call,) = [each for each in worker.driver.calls if each.name == "requeue"]
    assert (call.what, call.options["orderly"]) == (["tag"], True)
    assert held.lease.lost is None
    worker.leases.close()
