"""Which hooks, signals, callbacks and events each end of a leased task calls: the docs' table."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from celery import signals, states
from celery.exceptions import TaskRevokedError, Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker import state
from celery.worker.request import Request

from celery_lease.core.errors import TooManyDeliveries
from celery_lease.core.loss import FLAG_CANCELLED, FLAG_SHUTDOWN
from celery_lease.task.hooks import raised
from celery_lease.task.outcome import NotStored
from celery_lease.worker import compat
from celery_lease.worker.request import LeasedRequest
from unit.leased_runs import sent
from unit.played_ends import HOOKS, SIGNALS, Play
from unit.project.test_docs import DOCS, between, rows
from unit.worker.test_request import COMPLETED, LOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_lease import ToolContext


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """A delivery; no receiver stays."""
    play = Play(monkeypatch)
    sent(play.app)
    yield play
    for name in SIGNALS:
        getattr(signals, name).disconnect(dispatch_uid=name)


def succeeds(play: Play) -> None:
    play.run()


def fails(play: Play) -> None:
    def body(_: ToolContext) -> None:
        raise ValueError("no film")

    play.run(body)


def fails_in_its_pool(play: Play) -> None:
    play.reported(RuntimeError("of the pool"))


def reaches_its_limit_in_prefork(play: Play) -> None:
    play.reported(TimeLimitExceeded(1))
    play.request.on_timeout(False, 1)  # noqa: FBT003


def reaches_its_limit_in_a_green_pool(play: Play) -> None:
    play.request.on_timeout(False, 1)  # noqa: FBT003


def is_retried(play: Play) -> None:
    def body(_: ToolContext) -> None:
        raise play.task.retry(countdown=600)

    play.task.apply_async = Mock()
    play.task.signature_from_request = Mock()
    play.run(body)


def dies(play: Play) -> None:
    play.reported(WorkerLostError("signal 9"))


def exits(play: Play) -> None:
    play.reported(SystemExit(1))


def loses_its_lease(play: Play) -> None:
    def body(context: ToolContext) -> None:
        play.delivery.taken()
        context.beat()

    play.run(body)


def is_revoked_after_its_lease(play: Play) -> None:
    play.leases.lost = True
    play.reported(Terminated(15))


def is_not_stored(play: Play) -> None:
    play.request.on_success((1, raised(NotStored("in time")), 0.1))


def is_handed_over(play: Play) -> None:
    def body(context: ToolContext) -> None:
        play.delivery.shut_down()
        context.beat()

    play.run(body)


def is_cancelled_at_a_beat(play: Play) -> None:
    def body(context: ToolContext) -> None:
        play.flag(FLAG_CANCELLED)
        context.beat()

    play.run(body)


def is_cancelled_in_a_stopping_worker(play: Play) -> None:
    def body(context: ToolContext) -> None:
        play.flag(FLAG_CANCELLED | FLAG_SHUTDOWN)
        context.beat()

    play.run(body)


def is_cancelled_before_its_body(play: Play) -> None:
    play.flag(FLAG_CANCELLED)
    play.run()


def is_cancelled_while_it_waits(play: Play) -> None:
    state.task_reserved(play.request)
    compat.refuse(play.request.id)
    consumer: Any = Mock(timer=Mock(schedule=Mock(queue=[])))
    assert compat.revoke_waiting(consumer, "tag")


def is_revoked_where_it_comes_next(play: Play) -> None:
    state.revoked.add(play.request.id)
    assert play.request.revoked()


def has_expired(play: Play) -> None:
    play.request._expires = datetime(2001, 1, 1, tzinfo=UTC)
    assert play.request.revoked()


def is_terminated(play: Play) -> None:
    play.request.on_accepted(4711, 1.0)
    play.request.terminate(Mock(), "TERM")
    play.reported(Terminated(15))


def is_terminated_by_hand(play: Play) -> None:
    play.reported(Terminated(15))


def is_dead_lettered(play: Play) -> None:
    play.leases.ticket = TooManyDeliveries(play.request.id, 5, "q.dead")
    with pytest.raises(TaskRevokedError):
        play.request.execute_using_pool(Mock())


#: Before 5.7 a process that exits is told of as one that died, and never by its ``SystemExit``.
EXITS = [exits] if hasattr(LeasedRequest, "_worker_lost_info") else []

#: The ways to each end of the table, by the first word of its row.
WAYS: dict[str, list[Callable[[Play], None]]] = {
    "success": [succeeds],
    "failure": [fails, fails_in_its_pool],
    "hard": [reaches_its_limit_in_prefork, reaches_its_limit_in_a_green_pool],
    "retry": [is_retried],
    "loss:": [dies, *EXITS, loses_its_lease],
    "its": [is_not_stored],
    "handed": [is_handed_over],
    "cancelled": [
        is_cancelled_at_a_beat,
        is_cancelled_in_a_stopping_worker,
        is_cancelled_before_its_body,
        is_cancelled_while_it_waits,
    ],
    "revoked,": [
        is_revoked_where_it_comes_next,
        has_expired,
        is_terminated,
        is_terminated_by_hand,
    ],
    "dead": [is_dead_lettered],
}
TABLE = {
    row[0].split()[0]: row[1:]
    for row in rows(between((DOCS / "cancelling.md").read_text(), "calls"))[1:]
}


@pytest.mark.parametrize(
    ("end", "way"),
    [(end, way) for end, ways in WAYS.items() for way in ways],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_end_calls_what_the_table_says(
    play: Play, end: str, way: Callable[[Play], None]
) -> None:
    """Every cell, by every way to that end; each hook is called once.

    Failed without hooks: dead letter, every cancelling, every revoke.
    """
    way(play)
    said = [{each.strip("` ") for each in cell.split(",")} - {""} for cell in TABLE[end]]
    assert play.cells() == said
    assert all(count == 1 for each, count in Counter(play.heard).items() if each in HOOKS)


def test_the_table_has_a_test_for_each_row() -> None:
    """And the test a row."""
    assert TABLE.keys() == WAYS.keys()


@pytest.mark.parametrize(
    "way", [is_cancelled_at_a_beat, is_cancelled_while_it_waits, is_dead_lettered]
)
def test_a_hook_is_told_what_it_needs_to_release_a_lock(
    play: Play, way: Callable[[Play], None]
) -> None:
    """The task's id and arguments, the state, and an error that tells a cancelling apart."""
    way(play)
    failure, returned = play.task.reported
    buried = way is is_dead_lettered
    assert isinstance(failure[0], TooManyDeliveries if buried else TaskRevokedError)
    given = (play.delivery.task_id, ["a.mp4"], {})
    assert (failure[1], failure[2], list(failure[3]), failure[4]) == (given[0], *given)
    assert returned[0] == (states.FAILURE if buried else states.REVOKED)
    assert returned[1] is failure[0]
    assert (returned[2], list(returned[3]), returned[4]) == given


@pytest.mark.parametrize(
    "way", [is_cancelled_at_a_beat, is_cancelled_while_it_waits, is_dead_lettered]
)
def test_a_hook_that_fails_changes_nothing(
    play: Play, way: Callable[[Play], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The other one is called, and the end is what it was; one line says what failed."""
    play.task.on_failure = Mock(side_effect=ValueError("no lock"))
    with caplog.at_level(logging.ERROR):
        way(play)
    assert "after_return" in play.heard
    assert caplog.text.count(f"on_failure of task {play.task.name}[{play.request.id}] failed") == 1
    assert play.delivery.state(play.task) == (
        states.FAILURE if way is is_dead_lettered else states.REVOKED
    )


@pytest.mark.parametrize("hook", HOOKS[1::2])
@pytest.mark.parametrize("way", WAYS["hard"])
def test_a_hook_that_fails_at_a_hard_time_limit_changes_nothing(
    play: Play, way: Callable[[Play], None], hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing reaches the pool; the message is settled before.

    Celery 5.7 calls both hooks there with no guard.
    """

    def fails(*_: object) -> None:
        assert play.leases.end == COMPLETED
        raise ValueError("no lock")

    setattr(play.task, hook, fails)
    with caplog.at_level(logging.ERROR):
        way(play)
    assert play.delivery.state(play.task) == states.FAILURE
    assert play.leases.end == COMPLETED
    assert caplog.text.count(f"{hook} of task {play.task.name}[{play.request.id}] failed") == 1
    assert caplog.text.count("Hard time limit (1s) exceeded") == 1
    assert play.heard.count("task_failure") == play.heard.count("task-failed") == 1


@pytest.mark.parametrize("way", WAYS["hard"])
def test_a_message_that_goes_back_at_a_hard_time_limit_calls_nothing(
    play: Play, way: Callable[[Play], None]
) -> None:
    """Its task is not over: it runs again."""
    play.task.acks_on_failure_or_timeout = play.task.acks_on_timeout = False
    way(play)
    assert play.leases.end == LOST
    assert play.delivery.state(play.task) == states.PENDING
    assert set(play.heard) <= {"task-rejected"}  # as 5.7 tells monitors


if hasattr(Request, "_retry_worker_lost"):  # from Celery 5.7 on

    def test_a_hook_that_fails_after_a_lost_process_s_retry_changes_nothing(
        play: Play, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The retry is sent by then: the message must not go back beside it."""
        play.task.retry_on_worker_lost = True
        play.task.signature_from_request = Mock()
        play.task.on_retry = Mock(side_effect=ValueError("no lock"))
        with caplog.at_level(logging.ERROR):
            dies(play)
        assert play.leases.end == COMPLETED
        assert play.heard == ["task-retried"]
        assert f"on_retry of task {play.task.name}[{play.request.id}] failed" in caplog.text


def test_a_run_whose_lease_is_gone_calls_no_hooks_when_it_is_terminated(play: Play) -> None:
    """A lock would be released under whoever has the message now."""
    is_revoked_after_its_lease(play)
    assert not set(play.heard) & set(HOOKS)
