"""Draining a worker, the same on every broker: what waits goes back, nothing comes, it goes on."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.signals import worker_ready

from harness.waiting import always, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from harness.ledger import Ledger
    from harness.workers import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """A worker, the way to tell it, and what its broker knows."""

    worker: Worker
    ledger: Ledger
    send: Callable[..., Any]  #: one task of so many seconds: ``send((1.0,), countdown=5)``
    ready: Callable[[], int]  #: how many messages anybody might take
    drain: Callable[[], object]
    resume: Callable[[], object]
    delay: float = 0.0  #: seconds that the first message waits; 0: for its place in the pool

    def _send_late(self, delay: float) -> Any:
        return self.send((0.1,), countdown=delay) if delay else self.send((0.1,))

    def check(self) -> None:
        """Drain it while a task runs and two messages wait, and let it go on.

        What comes meanwhile it leaves alone, for longer than any poll that was under way.
        """
        running = self.send((6.0,))
        self.ledger.wait("start", running.id)
        waiting, later = self._send_late(self.delay), self._send_late(600)
        eventually(lambda: self.ready() == 0, 10, what="all are received")
        self.drain()
        eventually(lambda: self.ready() == 2, 5, what="what waits is back")
        assert self.ledger.count("end") == 0, "that was before the running task ended"
        # A poll that was under way may bring it once more; it goes back at the loop's next turn.
        settled = lambda: always(lambda: self.ready() == 2, 2.5, every=0.1)  # noqa: E731
        eventually(settled, 10, what="and stays there")
        self.ledger.wait("end", running.id)
        more = [self.send((0.1,)) for _ in range(5)]  # more than what the window has places
        assert always(lambda: self.ready() == 7, 2.5, every=0.1), "it takes nothing"
        self.resume()
        for each in (waiting, *more):
            self.ledger.wait("end", each.id)
        eventually(lambda: self.ready() == 0, what="all are taken")
        assert self.ledger.count("start", later.id) == 0
        assert [entry.task_id for entry in self.ledger.entries("start")].count(running.id) == 1
        assert self.worker.returncode is None


def by_remote_control(app: Celery, worker: Worker) -> dict[str, Callable[[], object]]:
    """Return how to tell a worker whose broker has remote control."""

    def broadcast(command: str) -> Callable[[], object]:
        return lambda: app.control.broadcast(command, destination=[worker.hostname])

    return {"drain": broadcast("lease_drain"), "resume": broadcast("lease_resume")}


def by_signal(worker: Worker) -> dict[str, Callable[[], object]]:
    """Return how to tell a worker of an app that called :func:`listen`."""

    def switch() -> None:
        worker.send(signal.SIGUSR2)

    return {"drain": switch, "resume": switch}


def listen() -> None:
    """Have this worker drain, or go on, at SIGUSR2; for brokers without remote control."""

    def begin(sender: Any, **_: Any) -> None:
        drain = sender.lease_runtime.drain

        def switch(*_: Any) -> None:
            draining = drain.leases.intake.draining
            sender.call_soon(drain.end if draining else drain.begin)

        signal.signal(signal.SIGUSR2, switch)

    worker_ready.connect(begin, weak=False)
