"""The worker's table of leases: what it tells whom when a message comes, runs and goes."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import replace

import pytest

from celery_lease import board as beatboard
from celery_lease.board import Board, BoardFull
from celery_lease.core.keys import Exclusive, Verdict
from celery_lease.core.lease import State
from celery_lease.core.loss import FLAG_LOST, FLAG_RELEASED, FLAG_SUPERSEDED
from celery_lease.worker import beginnings, fork_safety
from celery_lease.worker.backoff import FIRST
from celery_lease.worker.entries import Ending
from unit.fake_broker import POLICY, Bench, FakeMessage
from unit.fakes import PATIENCE

LOST_AND_TAKEN = FLAG_LOST | FLAG_SUPERSEDED


def test_terms_are_the_policy_of_the_message_s_task(bench: Bench) -> None:
    """A leased task's message is taken for its extension, and says who took it."""
    terms = bench.leases.terms(FakeMessage("id", "t"))
    assert terms is not None
    assert terms.seconds == POLICY.extension
    assert terms.about == {"task": "t", "id": "id", "worker": "w1"}


def test_a_ticket_carries_what_the_task_process_needs(bench: Bench) -> None:
    """Board, record, fence, and every part of the policy that is decided there."""
    bench.receive()
    ticket = bench.leases.start("a")
    assert ticket is not None
    assert ticket["board"] == bench.board.address
    assert (ticket["tag"], ticket["token"], ticket["deliveries"]) == ("a", 1, 1)
    assert (ticket["mode"], ticket["on_lost"]) == ("heartbeat", "abort")
    assert ticket["extension"] == 10.0
    assert ticket["worker"] == "w1"


def test_a_task_may_beat_until_the_deadline_of_its_claim(bench: Bench) -> None:
    """The gate is open when the task starts, and only as long as the claim was granted."""
    held = bench.receive()
    bench.clock.advance(4.0)
    bench.leases.start("a")
    assert bench.gate(held) == 1010.0


def test_a_task_does_not_start_after_its_lease(bench: Bench) -> None:
    """I3: no ticket, from the deadline on; finding that out is left to the keeper, who tells it.

    Removed: the deadline in ``LeaseRegistry._is_over``; failed with: a ticket ``is None``.
    """
    held = bench.receive()
    bench.clock.advance(10.0)
    assert bench.leases.start("a") is None
    assert bench.leases.is_lost("a")
    assert held.lease.state is State.RESERVED
    assert bench.passed().lost == 1


def test_starting_twice_takes_one_record(bench: Bench) -> None:
    """Celery may hand the same request over again; its ticket stays the same."""
    bench.receive()
    assert bench.leases.start("a") == bench.leases.start("a")


def test_a_full_board_is_told_and_changes_nothing(bench: Bench) -> None:
    """The message can then be handed back as one that never started; none is taken till one ends.

    Else it would come back at once, and again.
    """
    bench.leases.board = bench.board = Board.create(2, epoch=0.0)
    assert not bench.leases.backlogged
    bench.run("a")
    bench.receive("b")
    with pytest.raises(BoardFull):
        bench.leases.start("b")
    bench.leases.requeue(["b"])
    assert bench.driver.sent("requeue") == ["b"]
    assert bench.leases.backlogged
    bench.leases.complete("a")
    assert not bench.leases.backlogged


def test_a_start_that_the_pool_tells_late_is_dated_by_the_task(bench: Bench) -> None:
    """I2: the main loop stood still for 6 s; the lease ends 10 s after the start all the same.

    Removed: the task's own word in ``LeaseRegistry.accepted``; failed with: ``1006.0 == 1000.0``.
    """
    held = bench.receive()
    bench.leases.start("a")
    bench.write(held, beatboard.STARTED)
    bench.clock.advance(6.0)
    bench.leases.accepted("a", 1)
    assert held.lease.beat == held.lease.started_at == 1000.0


def test_completing_tells_the_broker_once(bench: Bench) -> None:
    """A second acknowledgement of a delivery has nothing to say."""
    bench.run()
    bench.leases.complete("a")
    bench.leases.complete("a")
    assert bench.driver.sent("complete") == ["a"]


def test_a_key_is_taken_in_the_call_that_completes_what_is_over(bench: Bench) -> None:
    """Not what still runs, nor in a pool of threads; the pool's report then has nothing to say."""
    ends(bench, "over", "over, too")
    bench.run("runs")
    for tag in ("b", "c"):
        bench.receive(tag, exclusive=Exclusive(key="k"))
        assert bench.leases.start(tag)
    assert bench.leases.take_key("b").verdict is Verdict.HELD
    assert not bench.driver.count("complete")
    assert bench.leases.take_key("c", settles=True).verdict is Verdict.HELD
    bench.leases.complete("over")
    assert [call.what for call in bench.driver.calls[1:]] == [["c"], ["over", "over, too"]]
    assert bench.driver.ends == ["over", "over, too"]
    assert [tag for tag in ("over", "over, too", "runs", "b", "c") if bench.leases.knows(tag)] == [
        "runs",
        "b",
        "c",
    ]
    assert bench.leases.endings[Ending.COMPLETED] == 2


def test_what_was_not_completed_with_a_key_is_completed_later(bench: Bench) -> None:
    """And while the broker is silent, a key is asked for alone."""
    ends(bench, "over")
    bench.receive("b", exclusive=Exclusive(key="k"))
    bench.driver.silent = True
    assert bench.leases.take_key("b", settles=True).verdict is Verdict.UNKNOWN
    ends(bench, "later")
    assert bench.leases.take_key("b", settles=True).verdict is Verdict.UNKNOWN
    assert bench.leases.knows("later")
    bench.driver.silent = False
    assert bench.leases.outbox.again() == 0
    assert bench.driver.sent("complete") == ["over", "over"]
    assert bench.leases.take_key("b", settles=True).verdict is Verdict.HELD
    assert not bench.leases.knows("later")


def ends(bench: Bench, *tags: str) -> None:
    """Let the processes of tasks write that these are over."""
    for tag in tags:
        held = bench.run(tag)
        assert held.slot
        bench.board.write_outcome(held.slot, beatboard.Outcome.DONE)


@pytest.mark.parametrize("end", ["complete", "requeue"])
def test_whoever_still_runs_under_an_ended_lease_is_told(bench: Bench, end: str) -> None:
    """I3: a thread that outlived its task, or a task that began while its message went back.

    Removed: the flag in ``LeaseRegistry._take``; failed with: ``0 == 3``.
    """
    held = bench.run()
    if end == "complete":
        bench.leases.complete("a")
    else:
        bench.leases.requeue(["a"])
    assert bench.gate(held) == 0.0
    assert bench.flags_of(held) == LOST_AND_TAKEN | FLAG_RELEASED  # and that it was not lost


def test_a_lost_lease_stays_lost_when_its_task_ends(bench: Bench) -> None:
    """Its message goes back at once if nobody took it, as a loss."""
    held = bench.run()
    bench.passed(10.0)
    bench.leases.discard("a")
    assert held.lease.state is State.LOST
    assert bench.driver.calls[-1].options == {"orderly": False, "front": True}


def test_a_loss_that_the_keeper_did_not_see_is_told_all_the_same(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The task was refused at its deadline and ended at once; one line, then and not later."""
    bench.run()
    bench.clock.advance(10.0)
    with caplog.at_level(logging.WARNING):
        bench.leases.discard("a")
        bench.passed()
    (record,) = caplog.records
    assert "lease of task t[id-a] lost (expired)" in record.getMessage()
    assert record.getMessage().endswith("its outcome is discarded")


def test_no_record_leaks_and_none_is_lent_to_two(bench: Bench) -> None:
    """Ten thousand tasks on a board of 63 records, three at a time, however they end."""
    for number in range(10_000):
        tags = [f"{number}.{part}" for part in range(3)]
        slots = [bench.run(tag).slot for tag in tags]
        assert len({slot.index for slot in slots if slot}) == 3
        bench.leases.complete(tags[0])
        bench.leases.requeue([tags[1]])
        bench.leases.discard(tags[2])
    assert len(bench.leases) == 0


def test_the_broker_hears_of_a_requeue_after_the_table_forgot(bench: Bench) -> None:
    """I5: at the moment of the call the keeper can no longer find the lease to extend it."""
    seen: list[int] = []
    requeue = bench.driver.requeue

    def watched(tags: list[str], **options: bool) -> object:
        seen.append(len(bench.leases))
        return requeue(tags, **options)

    bench.driver.requeue = watched  # type: ignore[assignment,method-assign]
    bench.receive()
    bench.leases.requeue_unstarted()
    assert seen == [0]


def test_what_has_not_started_goes_back_oldest_first_in_line(bench: Bench) -> None:
    """Received 1, 2, 3: they go to the front of the queue newest first. What runs stays."""
    for tag in ("1", "2", "3"):
        bench.receive(tag)
    bench.run("running")
    bench.leases.requeue_unstarted()
    assert bench.driver.sent("requeue") == ["3", "2", "1"]
    assert [held.lease.claim.tag for held in bench.leases.entries()] == ["running"]


def test_what_waits_inside_the_pool_goes_back_too(bench: Bench) -> None:
    """I6: a thread pool has queued it behind a task that runs for hours.

    Removed: the pool in ``LeaseRegistry.requeue_unstarted`` (``held.slot is None``); failed with:
    ``[] == ['a']``.
    """
    held = bench.receive()
    bench.leases.start("a")
    bench.leases.requeue_unstarted()
    assert bench.driver.sent("requeue") == ["a"]
    assert bench.flags_of(held) == LOST_AND_TAKEN | FLAG_RELEASED


def test_a_task_that_started_by_its_own_word_is_not_handed_back_at_shutdown(bench: Bench) -> None:
    """The main loop has not heard of it yet; the pool waits for it."""
    bench.run(pid=None)
    bench.leases.requeue_unstarted()
    assert bench.driver.count("requeue") == 0
    assert bench.leases.keeps("a")


def test_a_task_that_the_pool_has_forgotten_is_handed_back(bench: Bench) -> None:
    """I5: on a lost connection Celery's pool discards what it has not seen accepted, for good."""
    bench.run(pid=None)
    bench.run("accepted")
    bench.leases.requeue_unstarted(flushed=True)
    assert bench.driver.sent("requeue") == ["a"]


def test_settling_is_repeated_until_the_broker_answers(bench: Bench) -> None:
    """I5: an acknowledgement and a return that were not answered reach the broker in the end.

    Removed: the retry in ``Outbox._send``; failed with: ``not {'a': 1010.0, 'b': 1010.0}``.
    """
    bench.run("a")
    bench.receive("b")
    bench.driver.silent = True
    bench.leases.complete("a")
    bench.leases.requeue(["b"])
    bench.passed(0.5)
    assert set(bench.driver.expiries) == {"a", "b"}
    bench.driver.silent = False
    bench.passed(0.5)
    assert not bench.driver.expiries
    before = len(bench.driver.calls)
    bench.passed(0.5)
    assert len(bench.driver.calls) == before


def test_a_settlement_that_was_done_but_not_answered_ends_with_the_next_answer(
    bench: Bench,
) -> None:
    """The broker answers that the lease is over; that is what was wanted."""
    bench.run("a")
    bench.driver.deaf = True
    bench.leases.complete("a")
    bench.driver.deaf = False
    assert bench.leases.outbox.again() == 0


def test_a_silent_broker_costs_each_caller_one_timeout(bench: Bench) -> None:
    """Fifty acknowledgements: the first waits in vain, the rest wait in line, and a pass of
    the keeper tries once, so that leases are still extended in time.
    """
    for number in range(50):
        bench.run(str(number))
    bench.driver.silent = True
    for number in range(50):
        bench.leases.complete(str(number))
    assert bench.driver.count("complete") == 1
    bench.passed(0.5)
    assert bench.driver.count("complete") == 2
    bench.driver.silent = False
    bench.passed(0.5)
    assert not bench.driver.expiries


def test_a_driver_knows_of_an_orderly_end_before_a_silent_broker_does(bench: Bench) -> None:
    """The broker may deliver the message again meanwhile, which is no loss of this delivery."""
    for tag in "abc":
        bench.run(tag)
    bench.driver.silent = True
    bench.leases.complete("a")
    bench.leases.requeue(["b"])
    bench.leases.requeue(["c"], orderly=False)
    assert bench.driver.ends == ["a", "b"]
    assert bench.driver.count("requeue") == 0


def test_a_driver_knows_of_the_end_of_a_dropped_message(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that it did not know of was remembered."""
    monkeypatch.setattr(
        bench.driver, "capabilities", replace(bench.driver.capabilities, drops=True)
    )
    monkeypatch.setattr(bench.driver, "drop", bench.driver.complete, raising=False)
    bench.run("a")
    bench.leases.drop("a")
    assert bench.driver.ends == ["a"]
    assert not bench.driver.expiries


def test_taking_stops_while_unclaimed_messages_wait(bench: Bench) -> None:
    """A message whose claim was not answered is held here until its queue takes it."""
    bench.driver.silent = True
    bench.leases.unclaimed("attempt")
    bench.passed()
    assert bench.leases.backlogged
    bench.driver.silent = False
    bench.passed(FIRST)
    assert not bench.leases.backlogged
    assert bench.driver.sent("return_unclaimed") == ["attempt"] * 2


def test_a_worker_that_ends_goes_on_telling_a_broker_that_comes_back(bench: Bench) -> None:
    """Two acknowledgements were not answered; the broker is away for a second more: both are done.

    Removed: the loop in ``Outbox.within``; failed with: ``not {'a': 1010.0, 'b': 1010.0}``.
    """

    def rest() -> None:
        bench.clock.advance(0.25)
        bench.driver.silent = bench.clock.now() < 1001.0

    for tag in ("a", "b"):
        bench.run(tag)
    bench.driver.silent = True
    for tag in ("a", "b"):
        bench.leases.complete(tag)
    bench.leases.outbox.within(5.0, rest)
    assert not bench.driver.expiries
    assert bench.clock.now() == 1001.0


def test_a_worker_that_ends_waits_for_its_broker_for_so_long_only(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Then it says what nobody was told of, and leaves."""
    bench.run()
    bench.driver.silent = True
    bench.leases.complete("a")
    bench.leases.outbox.within(5.0, lambda: bench.clock.advance(0.25))
    assert bench.clock.now() == 1005.0
    bench.leases.close()
    assert "before it could acknowledge or return 1 message;" in caplog.text
    assert bench.driver.closed


def test_a_signal_handler_can_settle_in_the_thread_it_interrupted(bench: Bench) -> None:
    """Celery's cold shutdown rejects requests inside a handler, whatever the main thread does."""
    bench.receive()
    done = threading.Event()

    def interrupted() -> None:
        with bench.leases.lock:
            bench.leases.requeue(["a"])
        done.set()

    threading.Thread(target=interrupted, daemon=True).start()
    assert done.wait(PATIENCE)


def test_no_child_is_born_while_the_table_is_locked(bench: Bench) -> None:
    """A fork waits for the thread that holds the lock; the child can take it.

    Removed: the fork hooks; failed with: ``1 == 0``, a child that waited in vain.
    """
    holds, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with bench.leases.lock:
            holds.set()
            forked.wait(0.2)

    threading.Thread(target=hold).start()
    holds.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        free = bench.leases.lock.acquire(timeout=PATIENCE)
        os._exit(0 if free else 1)
    forked.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bench.leases.lock.acquire(blocking=False)
    bench.leases.lock.release()


def test_a_closed_table_is_not_locked_for_forks(bench: Bench) -> None:
    """An embedded worker that ended leaves nothing behind in its process."""
    before = fork_safety.guarded()
    bench.leases.close()
    assert fork_safety.guarded() == before - 1


def test_only_what_has_begun_can_be_lost(bench: Bench) -> None:
    """A ticket alone is no beginning, but in a pool of processes, whose requests say so."""
    for tag in ("waits", "in the pool", "in a process"):
        held = bench.receive(tag)
        bench.leases.start(tag)
    beginnings.note(bench.leases, held)
    bench.run("runs")
    bench.leases.requeue(["waits", "in the pool", "in a process", "runs"], orderly=False)
    returned = {
        tag: call.options["orderly"]
        for call in bench.driver.calls
        if call.name == "requeue"
        for tag in call.what
    }
    assert returned == {"waits": True, "in the pool": True, "in a process": False, "runs": False}


def test_what_has_begun_is_told_in_one_call_of_the_keeper(bench: Bench) -> None:
    """And of what is over by then, nothing: a short task costs the broker no call for it."""
    for tag in ("a", "b", "short"):
        bench.run(tag)
    bench.leases.complete("short")
    assert bench.driver.begun == []
    bench.passed()
    bench.passed()
    assert bench.driver.begun == [["a", "b"]]


def test_a_silent_broker_is_told_of_a_beginning_again(bench: Bench) -> None:
    """It is asked once a pass, not twice."""
    bench.run("a")
    bench.driver.silent = True
    bench.passed()
    assert bench.driver.begun == [["a"]]
    bench.driver.silent = False
    bench.clock.advance(FIRST)
    bench.passed()
    bench.passed()
    assert bench.driver.begun == [["a"], ["a"]]


def test_of_a_message_that_was_delivered_before_the_broker_knows_at_once(bench: Bench) -> None:
    """Else what kills its worker sooner than the keeper looks would never be given up."""
    bench.receive("a", deliveries=2)
    bench.leases.start("a")
    bench.leases.accepted("a", 1)
    assert bench.driver.begun == [["a"]]
    bench.passed()
    assert bench.driver.begun == [["a"]]


def test_a_beginning_in_the_main_loop_is_told_at_once(bench: Bench) -> None:
    """A solo worker dies with its task: the keeper may not come to it."""
    bench.leases.loop_is_task = True
    bench.run("a")
    assert bench.driver.begun == [["a"]]
    bench.passed()
    assert bench.driver.begun == [["a"]]


def test_a_message_waits_when_it_is_claimed(bench: Bench) -> None:
    """The broker is told when its task begins."""
    terms = bench.leases.terms(FakeMessage("a", "t"))
    assert terms is not None
    assert terms.waits
