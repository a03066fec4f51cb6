"""A task process asks the broker over a connection of its own, and of no other process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from celery_lease import brokers
from celery_lease.core.delivery import Answer
from celery_lease.core.ticket import Ticket
from celery_lease.task import confirm

if TYPE_CHECKING:
    from collections.abc import Sequence

TICKET = Ticket(tag="a", extension=10.0)


class Connected:
    """A driver that remembers which process connected it."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def extend(self, renewals: Sequence[Any], *, timeout: float) -> list[Answer]:
        """Confirm, to the process of this connection alone: another one mixes up the answers."""
        del timeout
        mine = os.getpid() == self.pid
        return [Answer.HELD if mine else Answer.UNKNOWN for _ in renewals]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[Connected]:
    """All drivers that were connected, in their order."""
    drivers: list[Connected] = []

    def connect(_: object) -> Connected:
        drivers.append(Connected())
        return drivers[-1]

    monkeypatch.setattr(confirm.brokers, "driver", connect)
    assert brokers.driver is connect
    return drivers


def test_a_process_connects_once(connected: list[Connected]) -> None:
    """The second run asks over the same connection."""
    app = Celery("confirm", broker="memory://", set_as_current=False)
    assert all(confirm.confirm(app, TICKET) for _ in range(2))
    assert len(connected) == 1


def test_a_forked_child_does_not_ask_over_its_parents_connection(
    connected: list[Connected], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that read one socket read each other's answers."""
    app = Celery("confirm", broker="memory://", set_as_current=False)
    assert confirm.confirm(app, TICKET)
    monkeypatch.setattr(os, "getpid", lambda: connected[0].pid + 1)
    assert confirm.confirm(app, TICKET)
    assert len(connected) == 2
