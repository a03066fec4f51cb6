"""One delivery of a leased task that ends as a test wants, and all that is called meanwhile.

One app, its own tracer and its own request; what becomes of the lease is said by the test.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

from celery import signals
from celery.worker.request import create_request_cls

from celery_lease import LeasedTask, ToolContext
from celery_lease.core.delivery import Answer
from celery_lease.task.hooks import raised
from celery_lease.worker.entries import LeaseHandle
from celery_lease.worker.request import LeasedRequest
from unit.leased_runs import Delivery, make_app, sent
from unit.worker.test_request import Leases

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

HOOKS = ("on_success", "on_failure", "on_retry", "after_return")
SIGNALS = ("task_success", "task_failure", "task_retry", "task_revoked")
#: In the order of the table's columns.
EVENTS = ("task-succeeded", "task-failed", "task-retried", "task-revoked")


class Asked(Leases):
    """Leases that move every message to its dead-letter queue."""

    def dead_letter(self, _tag: str, _queue: str) -> Answer:
        return Answer.HELD


class Hooked(LeasedTask):
    """A task whose hooks note that they were called, and hold a lock of each kind."""

    heard: list[str]
    reported: list[tuple[Any, ...]]

    def on_success(self, *_: Any) -> None:
        self.heard.append("on_success")

    def on_failure(self, exc: Any, *args: Any) -> None:
        self.heard.append("on_failure")
        self.reported.append((exc, self.request.id, *args[:3]))

    def on_retry(self, *_: Any) -> None:
        self.heard.append("on_retry")

    def after_return(self, *args: Any) -> None:
        self.heard.append("after_return")
        self.reported.append(args[:5])


def after() -> None:
    """Stand for a callback."""


class Play:
    """One delivery of a task that ends as the test wants, and all that was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app, self.delivery, self.leases = make_app(), Delivery(monkeypatch), Asked()
        self.heard: list[str] = []
        self.body: Callable[[ToolContext], Any] = lambda _: None

        @self.app.task(base=Hooked, shared=False, lazy=False, bind=True, name=uuid.uuid4().hex)
        def task(_own: Any, _film: str, *, context: ToolContext) -> Any:
            return self.body(context)

        for name in ("link", "errback"):
            self.app.task(after, name=name, shared=False, lazy=False)
        task.heard, task.reported, self.task = self.heard, [], task
        returned = task.backend.on_chord_part_return = Mock()
        returned.side_effect = lambda _, state, *__, **___: self.heard.append(f"chord {state}")
        for name in SIGNALS:
            getattr(signals, name).connect(self._hear(name), weak=False, dispatch_uid=name)
        self.request = self._request()

    def _hear(self, name: str) -> Callable[..., None]:
        return lambda **_: self.heard.append(name)

    def _request(self) -> Any:
        link = [self.app.signature("link", immutable=True)]
        errback = [self.app.signature("errback", immutable=True)]
        chord = self.app.signature("link", task_id="body", options={"task_id": "body"})
        self.embed = {"callbacks": link, "errbacks": errback, "chord": chord, "chain": None}
        headers = {"id": self.delivery.task_id, "task": self.task.name, "root_id": None}
        message = Mock(
            headers=headers, properties={}, delivery_info={}, content_type="application/json"
        )
        message.body, message.content_encoding = b"", "utf-8"
        message.payload = (["a.mp4"], {}, self.embed)
        eventer = Mock(enabled=True, send=lambda event, **_: self.heard.append(event))
        cls = create_request_cls(LeasedRequest, self.task, Mock(), "w@unit", eventer, app=self.app)
        request = cls(message, app=self.app, task=self.task, eventer=eventer, hostname="w@unit")
        request.lease = LeaseHandle(self.leases, "tag")  # type: ignore[arg-type]
        request._on_ack = request._on_reject = Mock()
        self.task.send_events = True
        return request

    def run(self, body: Callable[[ToolContext], Any] | None = None) -> None:
        """Run the task as a pool process does, and tell its end as a pool does."""
        self.body = body or self.body
        traced = self.delivery.trace(self.task, "a.mp4", request=dict(self.embed))
        failed = int(bool(traced.info))
        self.request.on_success((failed, traced.retval if failed else repr(traced.retval), 0.1))

    def reported(self, exc: BaseException) -> None:
        """Let the pool tell of a failure that no process has stored."""
        self.request.on_failure(raised(exc))

    def flag(self, flag: int) -> None:
        self.delivery.board.flag(self.delivery.slot, flag)

    def cells(self) -> list[set[str]]:
        """Return what was called, in the table's columns."""
        heard = set(self.heard)
        messages = {each.headers["task"] for each in sent(self.app)}
        chord = {each for each in heard if each.startswith("chord")}
        return [
            heard & set(HOOKS),
            heard & set(SIGNALS),
            {"called"} if "link" in messages else set(),
            {"called"} if "errback" in messages else set(),
            {"counts it"} if chord == {"chord SUCCESS"} else {"fails"} if chord else set(),
            heard & set(EVENTS),
        ]
