"""What a task process reads of its lease, also of a main process of another version."""

from __future__ import annotations

import json
import math

import pytest

from celery_lease.core.policy import Mode, OnLost
from celery_lease.core.ticket import Ticket

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


def test_the_version_before_reads_a_ticket_of_this_one() -> None:
    """It has the names that were read, with plain values of the same types."""
    written = Ticket.from_dict(OLD).to_dict()
    assert {name: written[name] for name in OLD} == OLD
    assert [type(written[name]) for name in OLD] == [type(value) for value in OLD.values()]
    assert json.loads(json.dumps(written)) == written


def test_a_ticket_survives_the_way_to_the_task_process() -> None:
    """Whatever is in it."""
    ticket = Ticket(board="inherited-1", tag="a", longest_until=math.inf, publishes=True)
    assert Ticket.from_dict(ticket.to_dict()) == ticket


@pytest.mark.parametrize("raw", [{}, {"tag": "a", "of_a_later_version": 1}])
def test_what_is_missing_has_its_default_and_what_is_unknown_is_left_out(
    raw: dict[str, object],
) -> None:
    """A later version may have dropped a name, or have one more."""
    ticket = Ticket.from_dict(raw)
    assert ticket == Ticket(tag=str(raw.get("tag", "")))
