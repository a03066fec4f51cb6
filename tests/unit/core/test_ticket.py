"""What a task process reads of its lease, also of a main process of another version."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from celery_lease.board import Slot
from celery_lease.core.delivery import Claim
from celery_lease.core.lease import Lease
from celery_lease.core.policy import LeasePolicy, Mode, OnLost
from celery_lease.core.ticket import Ticket
from celery_lease.worker import entries

if TYPE_CHECKING:
    from unit.fake_broker import Bench

#: As the version before wrote it.
OLD = {
    "board": "inherited-1",
    "slot": 3,
    "generation": 7,
    "task": "t",
    "id": "id-a",
    "tag": "a",
    "token": 41,
    "deliveries": 2,
    "confirms": False,
    "extension": 20.0,
    "mode": "observe",
    "on_lost": "continue",
    "longest": 3600.0,
    "longest_until": 1000.0,
    "worker": "w1",
}


def test_a_ticket_of_the_version_before_is_read() -> None:
    """Each of its values, and a default for what it did not have."""
    ticket = Ticket.from_dict(OLD)
    assert {name: getattr(ticket, name) for name in OLD} == OLD
    assert (ticket.mode, ticket.on_lost) == (Mode.OBSERVE, OnLost.CONTINUE)
    assert ticket.publishes is False
    assert Ticket.from_dict({**OLD, "publishes": True}).publishes is True


def written(bench: Bench) -> dict[str, Any]:
    """Return the ticket that a worker writes of the lease in OLD."""
    bench.leases.worker_id, bench.driver.capabilities = "w1", Mock(confirms=False)
    observe, goes_on = Mode.OBSERVE, OnLost.CONTINUE
    policy = LeasePolicy(extension=20.0, mode=observe, on_lost=goes_on, max_duration=3600.0)
    facts: Any = {"tag": "a", "token": 41, "queue": "q", "deliveries": 2, "losses": 0}
    claim = Claim(**facts, asked_at=400.0, seconds=20.0, limit=600.0)
    lease = Lease(claim, policy, task_id="id-a", name="t")
    return entries.ticket(bench.leases, lease, Slot(3, 7))


def test_the_version_before_reads_a_ticket_of_this_one(bench: Bench) -> None:
    """It has the names that were read, with plain values of the same types."""
    ticket, old = written(bench), {**OLD, "board": bench.board.address}
    assert {name: ticket[name] for name in old} == old
    assert [type(ticket[name]) for name in old] == [type(value) for value in old.values()]
    assert json.loads(json.dumps(ticket)) == ticket


def test_a_task_process_reads_all_that_a_ticket_has(bench: Bench) -> None:
    """And nothing is missing that it could read."""
    ticket = written(bench)
    assert {name: getattr(Ticket.from_dict(ticket), name) for name in ticket} == ticket
    assert set(ticket) == set(Ticket._fields)


@pytest.mark.parametrize("raw", [{}, {"tag": "a", "of_a_later_version": 1}])
def test_what_is_missing_has_its_default_and_what_is_unknown_is_left_out(
    raw: dict[str, object],
) -> None:
    """A later version may have dropped a name, or have one more."""
    ticket = Ticket.from_dict(raw)
    assert ticket == Ticket(tag=str(raw.get("tag", "")))
