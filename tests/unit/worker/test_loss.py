"""What is told of a loss: how the process ended, what the task said last, where it stood."""

from __future__ import annotations

from importlib import import_module

import pytest
from billiard.common import human_status

from celery_lease.board import Board
from celery_lease.board.spans import Span
from celery_lease.cli import story
from celery_lease.core.lease import State
from celery_lease.core.loss import LossReason
from celery_lease.worker import loss
from celery_lease.worker.diagnosis import Diagnosis, Doing
from celery_lease.worker.entries import Ending
from unit.fake_broker import Bench


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (-9, "SIGKILL, perhaps out of memory"),
        (-11, "SIGSEGV"),
        (-63, "signal 63"),
        (3, "exit code 3"),
        (0, "exit code 0"),
    ],
)
def test_the_signal_or_exit_code_of_a_process_is_the_cause(status: int, cause: str) -> None:
    """By billiard's own words; notices when they change."""
    text = f"Worker exited prematurely: {human_status(status)} Job: 9."
    assert loss.cause_of_death(text) == cause


def test_other_words_stay_as_they_are() -> None:
    """Such as a time limit's."""
    assert loss.cause_of_death("TimeLimitExceeded(3)") == "TimeLimitExceeded(3)"


def test_a_dead_process_tells_what_its_task_said_last(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, in the event, in the metric's label, and to the broker's history."""
    bench.leases.stats.listening = True
    held = bench.run()
    assert held.slot
    bench.leases.board.report(held.slot, 3, 10, "sawing")
    bench.leases.process_ended("a", "Worker exited prematurely: signal 9 (SIGKILL) Job: 1.")
    bench.leases.requeue(["a"], orderly=False, ending=Ending.PROCESS_DIED)
    why = {"cause": "SIGKILL, perhaps out of memory", "note": "sawing", "done": 3.0, "total": 10.0}
    assert bench.driver.why == why
    assert "(SIGKILL, perhaps out of memory; its last note: 'sawing'; 3 done of 10)" in caplog.text
    kind, event = bench.leases.stats.news[-1]
    assert kind == "lease-ended"
    assert event["ending"] == "process died"
    assert {name: event[name] for name in why} == why
    labels = [key.detail for key in bench.leases.stats.counts if key.fact == "ended"]
    assert labels == ["process_died"]


def test_an_orderly_return_has_no_cause(bench: Bench) -> None:
    """Whatever was noted of it."""
    held = bench.run()
    bench.leases.note_loss(held, "cause")
    bench.leases.requeue(["a"])
    assert bench.driver.why is None


def test_a_silent_task_s_stack_goes_with_its_message(bench: Bench) -> None:
    """But not with the event, which is small."""
    bench.leases.stats.listening = True
    held = bench.run()
    seen = Diagnosis(Doing.BUSY, stack="in burn\n" * 1000)
    bench.leases.note_loss(held, f"silent for 3.0 s, {seen}", seen.stack)
    bench.leases.requeue(["a"], orderly=False, ending=Ending.STALLED)
    assert bench.driver.why
    assert len(str(bench.driver.why["stack"])) == loss.LONGEST_STACK
    assert "stack" not in bench.leases.stats.news[-1][1]


def test_a_loss_of_a_lease_that_left_is_not_read_from_its_record(bench: Bench) -> None:
    """The record may be another task's by then."""
    held = bench.run()
    bench.leases._take("a", State.RELEASED, Ending.LOST)
    bench.leases.note_loss(held, "cause")
    assert held.why == {}


def test_what_is_not_a_number_of_json_is_left_out() -> None:
    """An endless total, for one."""
    board = Board.create(2)
    held = Bench().run()
    held.slot = board.lend()
    board.report(held.slot, 1, float("inf"), None)
    assert loss.facts(board, held, "c") == {"cause": "c", "done": 1.0}
    board.close()


def test_people_read_it() -> None:
    """In the history of a dead letter, and where a task is explained."""
    entry = {"reason": "given up", "cause": "SIGSEGV", "note": "n", "stack": "a\nb", "key": "k"}
    dead = import_module("celery_lease.cli.dead")
    shown = dead.loss(entry)
    assert (shown["cause"], shown["note"], shown["stack"]) == ("SIGSEGV", "n", ["a", "b"])
    assert "key" not in shown
    assert story._loss(entry).endswith("lost (SIGSEGV)")
    assert "cause" not in dead.loss({"reason": "expired"})


def test_what_not_every_broker_takes_is_left_out(bench: Bench) -> None:
    """PostgreSQL stores neither NUL nor half a surrogate pair."""
    held = bench.run()
    bench.leases.note_loss(held, "a\0b\ud800", "c\0")
    assert held.why == {"cause": "ab?", "stack": "c"}


def test_a_result_that_was_not_stored_is_the_cause(bench: Bench) -> None:
    """In the event and with the message, as that of any loss.

    Failed before with: no cause at all.
    """
    bench.leases.stats.listening = True
    held = bench.run()
    assert held.slot
    bench.leases.board.report(held.slot, 10, 10, "done")
    bench.leases.not_stored("a")
    why = {"cause": str(LossReason.RESULT_NOT_STORED), "note": "done", "done": 10.0, "total": 10.0}
    assert bench.driver.why == why
    event = bench.leases.stats.news[-1][1]
    assert {name: event[name] for name in why} == why


def test_a_result_that_a_cold_shutdown_cut_off_is_the_cause(bench: Bench) -> None:
    """Noted in a signal handler, told by the keeper."""
    bench.enter(bench.run(), Span.STORING)
    bench.leases.end_soon("a", storing=bench.leases.is_storing("a"))
    bench.leases.outbox.again()
    assert bench.driver.why == {"cause": str(LossReason.RESULT_NOT_STORED)}


def test_a_dead_process_stays_the_cause_when_its_lease_has_expired_as_well(bench: Bench) -> None:
    """Failed before with: expired."""
    held = bench.run()
    held.lease.lose(LossReason.EXPIRED)
    bench.leases.process_ended("a", "Worker exited prematurely: signal 11 (SIGSEGV) Job: 1.")
    bench.leases.discard("a")
    assert bench.driver.why == {"cause": "SIGSEGV"}
