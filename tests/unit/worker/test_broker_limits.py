"""What a worker does with a broker like SQS: a first expiry that is the queue's, a last one that
no beat moves, no fence, no confirmation, and a dead-letter queue of its own.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from celery_lease import board as beatboard
from celery_lease.board.spans import Span
from celery_lease.core.clock import SystemClock
from celery_lease.core.lease import Lease, State
from celery_lease.core.loss import FLAG_BROKER_LIMIT, LossReason
from celery_lease.core.ticket import Ticket
from celery_lease.task import outcome
from celery_lease.task.current import leased_context, prolong
from unit.fake_broker import POLICY, Bench
from unit.leased_runs import Delivery, leased

if TYPE_CHECKING:
    from celery import Celery

    from celery_lease.worker.entries import LeaseEntry


@pytest.fixture
def bench() -> Bench:
    """A worker's table and keeper."""
    return Bench()


def receive(bench: Bench, tag: str = "a", **facts: object) -> LeaseEntry:
    """Claim a message with further facts of the claim."""
    held = bench.receive(tag)
    claim = replace(held.lease.claim, **facts)  # type: ignore[arg-type]
    held.lease = Lease(claim, held.lease.policy, task_id=f"id-{tag}", name="t")
    bench.leases.reserved.put_off(held, bench.clock.now())
    return held


def test_a_first_expiry_that_is_the_queues_is_replaced_at_the_next_pass(bench: Bench) -> None:
    """Otherwise a killed worker's messages would stay invisible for the queue's long timeout."""
    receive(bench, provisional=True)
    assert bench.passed(0.5).extended == 1
    assert bench.driver.sent("extend")[0].seconds == POLICY.extension - 0.5


def test_a_message_that_waits_is_left_to_its_queue_for_a_moment(bench: Bench) -> None:
    """It is extended while there is enough time, although the keeper looked at it before."""
    receive(bench, provisional=True, enough_for=1.2)
    assert [bench.passed(0.5).extended for _ in range(4)] == [0, 0, 1, 0]


def test_a_task_that_starts_gets_the_whole_lease_at_the_next_pass(bench: Bench) -> None:
    """Until then its deadline is the queue's. Its start counts as a beat."""
    held = receive(bench, provisional=True, enough_for=5.0, seconds=6.0)
    assert bench.passed(0.5).extended == 0
    assert bench.leases.start("a")
    assert bench.gate(held) == 1006.0
    bench.write(held, beatboard.STARTED)
    bench.enter(held, Span.BODY)
    assert bench.passed(0.5).extended == 1
    assert bench.gate(held) == held.lease.deadline == 1000.5 + POLICY.extension


def test_a_first_expiry_of_the_leases_own_needs_no_call(bench: Bench) -> None:
    """A claim that set the lease's expiry itself is not repeated."""
    receive(bench)
    assert bench.passed(0.5).extended == 0


def test_nothing_extends_a_lease_beyond_the_brokers_limit(bench: Bench) -> None:
    """The lease ends at the limit, beats or not, and the log says why."""
    held = bench.run()
    held.lease.claim = replace(held.lease.claim, limit=25.0)
    for _ in range(12):
        bench.beat(held)
        bench.passed(2.0)
    assert max(bench.driver.expiries.values()) <= 1025.0
    bench.beat(held)
    assert bench.passed(2.0).lost == 1
    assert held.lease.lost is LossReason.BROKER_LIMIT
    assert (bench.flags_of(held) or 0) & FLAG_BROKER_LIMIT


def test_a_dropped_message_is_left_to_the_brokers_own_dead_letter_queue(bench: Bench) -> None:
    """It goes back, and the broker moves it when its deliveries are used up."""
    held = receive(bench, delivery_limit=3)
    bench.leases.drop("a")
    assert (bench.driver.count("requeue"), bench.driver.count("complete")) == (1, 0)
    assert held.lease.state is State.RELEASED


def test_a_dropped_message_is_gone_where_no_dead_letter_queue_is(bench: Bench) -> None:
    """As a plain reject without requeue."""
    bench.receive()
    bench.leases.drop("a")
    assert bench.driver.count("complete") == 1


def test_a_run_that_ends_within_its_first_lease_does_not_wait(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQS hides it for 20 s, and the lease will be 300 s: that is enough to store an outcome.

    Seen to fail with a tenth of the lease: each short task waited for the keeper's next pass.
    """
    delivery = Delivery(monkeypatch, confirms=False, extension=300.0)
    delivery.board.allow(delivery.slot, SystemClock().now() + 20.0)
    monkeypatch.setattr(outcome, "prolong", None)

    @leased(app)
    def f() -> str:
        return "done"

    assert delivery.trace(f).retval == "done"


@pytest.mark.parametrize("kept", [True, False])
def test_a_run_that_ends_late_waits_for_its_extension(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """Where an expired lease cannot be confirmed, the end of the run counts as a last beat."""
    now = SystemClock().now()
    board, slot = bench.board, bench.board.lend()
    board.allow(slot, now + 30.0)
    ticket = Ticket(board=board.address, slot=slot.index, generation=slot.generation)
    context = leased_context(ticket, "id")

    def keeper(_: object, _timeout: float | None = None) -> bool:
        assert board.read_time(slot, beatboard.BEAT) >= now
        board.allow(slot, now + 900.0 if kept else now)
        return False

    monkeypatch.setattr(threading.Event, "wait", keeper)
    assert prolong(context, margin=60.0) is kept
