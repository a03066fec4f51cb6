"""A message that was lost too often: what is asked of the broker, and what Celery is told."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from billiard.einfo import ExceptionInfo
from celery.exceptions import TaskRevokedError, WorkerLostError
from celery.worker import state
from celery.worker.request import create_request_cls

from celery_lease import LeasedTask
from celery_lease.core.delivery import Answer
from celery_lease.core.errors import TooManyDeliveries
from celery_lease.worker import poison
from celery_lease.worker.entries import LeaseHandle
from celery_lease.worker.request import LeasedRequest
from unit.fake_broker import Bench as Worker
from unit.leased_runs import make_app, message_of

if TYPE_CHECKING:
    from celery_lease.worker.registry import LeaseRegistry

LOST_TOO_OFTEN = 5  # the default of lease_max_deliveries


class Broker:
    """Answers as the test says, and keeps what it was asked."""

    def __init__(self, worker: Worker) -> None:
        self.asked: list[tuple[str, str]] = []
        self.answers = [Answer.HELD]
        worker.driver.dead_letter = self.dead_letter  # type: ignore[attr-defined]

    def dead_letter(self, tag: str, queue: str, _about: Any) -> Answer:
        self.asked.append((tag, queue))
        return self.answers.pop(0)


class Bench:
    """One request of a task under a lease of a worker whose broker is a dict."""

    def __init__(self, losses: int, **options: Any) -> None:
        app = make_app()

        @app.task(base=LeasedTask, shared=False, lazy=False, name="poison.unit", **options)
        def task() -> None: ...

        self.task, self.worker, self.pool = task, Worker(), Mock()
        self.leases: LeaseRegistry = self.worker.leases
        self.leases.dead_letter_queue_of = "{}.dead".format
        self.broker = Broker(self.worker)
        self.tag = uuid.uuid4().hex
        held = self.worker.receive(self.tag)
        held.lease.claim = replace(held.lease.claim, losses=losses)
        self.events: list[str] = []
        message = message_of(task, f"id-{self.tag}")
        eventer = Mock(enabled=True, send=lambda event, **_: self.events.append(event))
        cls = create_request_cls(LeasedRequest, task, self.pool, "w@unit", eventer, app=app)
        self.request: Any = cls(message, app=app, task=task, eventer=eventer, hostname="w@unit")
        self.request.lease = LeaseHandle(self.leases, self.tag)
        self.acked = self.request._on_ack = Mock()
        self.request._on_reject = Mock()
        state.task_reserved(self.request)

    def start(self) -> None:
        self.request.execute_using_pool(self.pool)

    @property
    def result(self) -> Any:
        return self.task.AsyncResult(f"id-{self.tag}")

    def is_settled(self) -> bool:
        """Tell whether Celery knows no more of the request and its place is free."""
        return self.request not in state.reserved_requests and self.acked.called


def test_a_message_that_was_lost_less_often_is_run() -> None:
    """The limit is a number of losses, and the last one allowed still leads to a run."""
    bench = Bench(LOST_TOO_OFTEN - 1)
    bench.start()
    assert bench.pool.apply_async.called
    assert not bench.broker.asked


def test_a_message_that_was_lost_too_often_is_dead_lettered_and_its_task_fails() -> None:
    """It never gets to the pool; the result, the event and the place in the window are settled."""
    bench = Bench(LOST_TOO_OFTEN)
    with pytest.raises(TaskRevokedError):
        bench.start()
    assert not bench.pool.apply_async.called
    assert bench.broker.asked == [(bench.tag, "q.dead")]
    assert bench.result.state == "FAILURE"
    assert "task-failed" in bench.events
    assert bench.is_settled()
    assert len(bench.leases) == 0
    assert not bench.worker.driver.calls  # neither acknowledged nor handed back beside that
    assert bench.worker.driver.ends == [bench.tag]


@pytest.mark.parametrize("answers", [[Answer.LOST], [Answer.UNKNOWN] * 2])
def test_who_did_not_move_it_reports_no_failure(answers: list[Answer]) -> None:
    """It may be somebody else's, who is running it."""
    bench = Bench(LOST_TOO_OFTEN)
    bench.broker.answers = answers
    with pytest.raises(TaskRevokedError):
        bench.start()
    assert bench.result.state == "PENDING"
    assert "task-failed" not in bench.events
    assert bench.is_settled()
    assert not bench.pool.apply_async.called


def test_an_answer_that_got_lost_is_asked_for_again() -> None:
    """The broker says the same, and the task has failed once."""
    bench = Bench(LOST_TOO_OFTEN)
    bench.broker.answers = [Answer.UNKNOWN, Answer.HELD]
    with pytest.raises(TaskRevokedError):
        bench.start()
    assert len(bench.broker.asked) == 2
    assert bench.result.state == "FAILURE"


def test_a_backend_that_cannot_store_the_failure_does_not_end_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The message is safe by then; the log says what is missing."""
    bench = Bench(LOST_TOO_OFTEN)
    bench.task.backend.mark_as_failure = Mock(side_effect=OSError("backend is down"))
    with pytest.raises(TaskRevokedError):
        bench.start()
    assert "not reported" in caplog.text


def test_a_broker_with_an_order_of_its_own_is_left_to_it() -> None:
    """Its driver moves nothing to a dead-letter queue, however often a message was lost."""
    bench = Bench(LOST_TOO_OFTEN)
    bench.leases.dead_letter_queue_of = None
    bench.start()
    assert bench.pool.apply_async.called


def test_a_letter_that_dies_in_a_dead_letter_queue_goes_to_another_one() -> None:
    """With one queue for all dead letters it would go round in it for ever."""
    bench = Bench(LOST_TOO_OFTEN)
    bench.leases.dead_letter_queue_of = lambda _: "q"
    with pytest.raises(TaskRevokedError) as caught:
        bench.start()
    assert caught.value.__suppress_context__
    assert bench.broker.asked == [(bench.tag, "q.dead")]


def test_a_task_out_of_memory_that_failed_is_a_failed_task() -> None:
    """Celery would raise MemoryError in the main process, which ends it."""
    bench = Bench(0)
    bench.start()
    bench.request.on_success((1, _info(MemoryError("all")), 0.1))
    assert bench.is_settled()
    assert "task-failed" in bench.events
    assert [call.name for call in bench.worker.driver.calls] == ["complete"]


def test_a_process_out_of_memory_is_a_lost_one() -> None:
    """Nothing was stored, so the message goes back, and that counts as a loss."""
    bench = Bench(0)
    bench.start()
    bench.request.on_failure(_info(MemoryError("all")))
    (call,) = bench.worker.driver.calls
    assert (call.name, call.options["orderly"]) == ("requeue", False)
    assert bench.result.state == "PENDING"


def test_what_stands_for_a_memory_error_says_what_it_was() -> None:
    """For logs and events; what the pool told is left as it was."""
    error = MemoryError("all")
    info = _info(error)
    before = info.exception
    assert "all" in str(poison.survivable(info, error, stored=True).exception)
    assert isinstance(poison.survivable(info, error, stored=False).exception, WorkerLostError)
    assert info.exception is before


def _info(exc: BaseException) -> Any:
    with pytest.raises(type(exc)) as caught:
        raise exc
    return ExceptionInfo((caught.type, caught.value, caught.tb))


def test_the_error_says_where_the_message_is() -> None:
    """A reader of the result finds it without the worker's log."""
    assert "'q.dead'" in str(TooManyDeliveries("id", 5, "q.dead"))
