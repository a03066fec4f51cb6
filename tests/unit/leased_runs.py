"""A leased task's run as in a task process: Celery's own tracer over a real beat board.

No worker and no broker: what the main process and the broker would say is said by the test.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

from celery import Celery
from celery.app.trace import build_tracer

from celery_lease import LeasedTask
from celery_lease.board import Board
from celery_lease.core.clock import host_seconds
from celery_lease.core.loss import FLAG_LOST, FLAG_SHUTDOWN, FLAG_SUPERSEDED
from celery_lease.task import outcome

if TYPE_CHECKING:
    import pytest
    from celery import Task
    from celery.app.trace import trace_ok_t

EXTENSION = 100.0


def make_app(name: str = "unit", **options: Any) -> Celery:
    """Return an app that sends to a broker in memory and stores results there."""
    app = Celery(
        name, broker="memory://", backend="cache+memory://", set_as_current=False, **options
    )
    app.conf.update(broker_transport_options={"polling_interval": 0})
    return app


def message_of(task: Task[Any, Any], task_id: str) -> Any:
    """Return a message of a task without arguments, as its request gets it."""
    headers = {"id": task_id, "task": task.name, "root_id": None}
    message = Mock(
        headers=headers, properties={}, delivery_info={}, content_type="application/json"
    )
    message.body, message.content_encoding = b'[[], {}, {"chord": null}]', "utf-8"
    message.payload = ([], {}, {})
    return message


class Delivery:
    """One delivery under a lease, and the hand that takes the lease away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **ticket: Any) -> None:
        self.board = Board.create(4)
        self.slot = self.board.lend()
        self.board.allow(self.slot, host_seconds() + EXTENSION)
        self.task_id = uuid.uuid4().hex
        self.broker_says = False
        self.asked = 0
        self.ticket = {
            "board": self.board.address,
            "slot": self.slot.index,
            "generation": self.slot.generation,
            "tag": "tag",
            "token": 7,
            "deliveries": 1,
            "extension": EXTENSION,
            "mode": "heartbeat",
            "on_lost": "abort",
            "interruptible": False,
            "worker": "w@unit",
            **ticket,
        }
        monkeypatch.setattr(outcome, "confirm", self._confirm)

    def _confirm(self, *_: object) -> bool:
        self.asked += 1
        return self.broker_says

    def expire(self, ago: float = 1.0) -> None:
        """Let the deadline have passed; nobody took the message yet."""
        self.board.allow(self.slot, host_seconds() - ago)

    def nearly_expire(self) -> None:
        """Leave the lease a twentieth of its time."""
        self.board.allow(self.slot, host_seconds() + EXTENSION / 20)

    def taken(self) -> None:
        """Let another delivery own the message, and the keeper have told so."""
        self.board.flag(self.slot, FLAG_LOST | FLAG_SUPERSEDED)

    def shut_down(self) -> None:
        """Ask the task to stop."""
        self.board.flag(self.slot, FLAG_SHUTDOWN)

    def state(self, task: Task[Any, Any]) -> str:
        """Return what the result backend says of the delivered task."""
        return str(task.AsyncResult(self.task_id).state)

    def trace(
        self, task: Task[Any, Any], *args: Any, request: Any = None, **kwargs: Any
    ) -> trace_ok_t:
        """Run *task* as a pool process does, storing its result and calling its callbacks."""
        facts = {
            "id": self.task_id,
            "delivery_info": {"exchange": "", "routing_key": "celery", "lease": self.ticket},
            "hostname": "w@unit",
            "called_directly": False,
            **(request or {}),
        }
        task.__trace__ = build_tracer(task.name, task, app=task.app)  # as every pool does
        traced: trace_ok_t = task.__trace__(facts["id"], args, kwargs, facts)
        return traced


def sent(app: Celery, queue: str = "celery") -> list[Any]:
    """Take all messages from a queue of the broker in memory."""
    with app.connection_for_read() as connection, connection.SimpleQueue(queue) as simple:
        found = []
        while simple.qsize():
            message = simple.get(timeout=1)
            message.ack()
            found.append(message)
        return found


def leased(app: Celery, **options: Any) -> Any:
    """Return a decorator that makes a leased task of *app* alone."""
    return app.task(**{"base": LeasedTask, "shared": False, "lazy": False, **options})
