"""A broker in memory for the worker's table of leases and its keeper, and a bench that holds both.

The broker keeps expiries by the test's clock and answers as it is told to: it can be silent, and
it can do something at the moment a call reaches it, which is how races are rigged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from celery_lease import board as beatboard
from celery_lease.board import Board, spans
from celery_lease.board.spans import Span
from celery_lease.core.delivery import Answer, Capabilities, Claim, Reaped, Renewal
from celery_lease.core.keys import Exclusive, KeyAnswer, Verdict
from celery_lease.core.policy import LeasePolicy
from celery_lease.worker.keeper import Keeper, Report
from celery_lease.worker.reaper import ReaperStats
from celery_lease.worker.registry import LeaseRegistry
from celery_lease.worker.telemetry import Telemetry
from unit.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_lease.worker.entries import LeaseEntry

POLICY = LeasePolicy(extension=10.0, interval=2.0, shutdown_timeout=10.0)


class FakeMessage:
    """What the table needs of a kombu message."""

    def __init__(self, task_id: str, task: str, lease: Mapping[str, object] | None = None) -> None:
        self.headers = {"task": task, "id": task_id, "lease": lease}
        self.lease: Any = None
        self.lease_task = task, task_id
        self.lease_policy: LeasePolicy | None = None
        self.lease_exclusive: Exclusive | None = None
        self.lease_fault: Exception | None = None


@dataclass
class Call:
    """One call of the broker."""

    name: str
    what: list[Any]
    timeout: float | None = None
    options: dict[str, object] = field(default_factory=dict)


class FakeDriver:
    """A :class:`celery_lease.core.delivery.Driver` whose broker is a dict."""

    capabilities = Capabilities(extends=True, fences=True, confirms=True, granularity=0.0)
    is_tended = False

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.expiries: dict[str, float] = {}
        self.calls: list[Call] = []
        self.begun: list[list[str]] = []
        self.silent = False  #: nothing is done, nothing is answered
        self.deaf = False  #: everything is done, nothing is answered
        self.closed = False
        self.ends: list[str] = []  #: tags that were said to end in order
        self.meanwhile: Callable[[], None] = lambda: None  #: runs once, inside the next extension

    def extend(self, renewals: Sequence[Renewal], *, timeout: float) -> list[Answer]:
        self.calls.append(Call("extend", list(renewals), timeout))
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return [self._done(each.tag, self.clock.now() + each.seconds) for each in renewals]

    def begin(self, tags: Sequence[str]) -> list[Answer]:
        self.begun.append(list(tags))
        return [Answer.UNKNOWN if self.silent else Answer.HELD for _ in tags]

    def take_key_and_complete(
        self, tag: str, done: Sequence[str]
    ) -> tuple[KeyAnswer, list[Answer]]:
        self.calls.append(Call("take", [tag]))
        verdict = Verdict.UNKNOWN if self.silent else Verdict.HELD
        return KeyAnswer(verdict), self.complete(done) if done else []

    def complete(self, tags: Sequence[str]) -> list[Answer]:
        self.calls.append(Call("complete", list(tags)))
        return [self._done(tag, None) for tag in tags]

    def requeue(
        self,
        tags: Sequence[str],
        *,
        orderly: bool,
        front: bool,
        why: dict[str, object] | None = None,
    ) -> list[Answer]:
        self.why = why  #: what was known of the last loss
        options = {"orderly": orderly, "front": front}
        self.calls.append(Call("requeue", list(tags), options=dict(options)))
        return [self._done(tag, None) for tag in tags]

    def ended(self, tags: Sequence[str]) -> None:
        self.ends += tags

    def return_unclaimed(self, attempts: Sequence[Any]) -> list[Answer]:
        self.calls.append(Call("return_unclaimed", list(attempts)))
        return [Answer.UNKNOWN if self.silent else Answer.HELD for _ in attempts]

    def reap(self, *, limit: int) -> list[Reaped]:
        raise OSError(limit)

    def close(self) -> None:
        self.closed = True

    def sent(self, name: str) -> list[Any]:
        """Return what was asked by all calls of a name."""
        return [each for call in self.calls if call.name == name for each in call.what]

    def count(self, name: str) -> int:
        return sum(call.name == name for call in self.calls)

    def _done(self, tag: str, expiry: float | None) -> Answer:
        if self.silent:
            return Answer.UNKNOWN
        if tag not in self.expiries:
            return Answer.UNKNOWN if self.deaf else Answer.LOST
        if expiry is None:
            del self.expiries[tag]
        else:
            self.expiries[tag] = expiry
        return Answer.UNKNOWN if self.deaf else Answer.HELD


class Bench:
    """One worker's table, board and keeper, on a clock and a broker of the test's own."""

    def __init__(self, policy: LeasePolicy = POLICY) -> None:
        self.clock = FakeClock()
        self.driver = FakeDriver(self.clock)
        self.board = Board.create(64, epoch=0.0)
        self.policy = policy
        self.leases = LeaseRegistry(
            self.driver, self.board, self.clock, "w1", lambda _, __: self.policy
        )
        self.keeper = Keeper(self.leases)

    def receive(
        self,
        tag: str = "a",
        *,
        policy: LeasePolicy | None = None,
        task: str = "t",
        deliveries: int = 1,
        exclusive: Exclusive | None = None,
    ) -> LeaseEntry:
        """Claim a message, as a channel does."""
        message = FakeMessage(f"id-{tag}", task)
        message.lease_exclusive = exclusive
        message.lease_policy = policy or self.policy
        seconds = message.lease_policy.extension
        claim = Claim(
            tag=tag,
            token=1,
            queue="q",
            deliveries=deliveries,
            losses=0,
            asked_at=self.clock.now(),
            seconds=seconds,
        )
        self.driver.expiries[tag] = self.clock.now() + seconds
        self.leases.claimed(claim, message)
        return self.held(tag)

    def run(self, tag: str = "a", *, pid: int | None = 1, **options: Any) -> LeaseEntry:
        """Receive a message and start its task."""
        self.receive(tag, **options)
        return self.begin(tag, pid=pid)

    def begin(self, tag: str = "a", *, pid: int | None = 1) -> LeaseEntry:
        """Start the task of a message."""
        held = self.held(tag)
        assert self.leases.start(tag)
        self.write(held, beatboard.STARTED)
        self.enter(held, Span.BODY)
        self.beat(held)
        if pid is not None:
            self.leases.accepted(tag, pid)
        return held

    def telemetry(self, **watchdog: int) -> Telemetry:
        """Return what exporters see of this worker, with some of the watchdog's numbers."""
        seen: Any = SimpleNamespace(**{"stalled": 0, "disowned": 0, "stuck": 0, **watchdog})
        return Telemetry("w1@host", self.leases, ReaperStats(), seen)

    def held(self, tag: str) -> LeaseEntry:
        return self.leases._entries[tag]

    def write(self, held: LeaseEntry, cell: int, seconds: float | None = None) -> None:
        """Write a time as the task does."""
        assert held.slot
        self.board.write_time(held.slot, cell, self.clock.now() if seconds is None else seconds)

    def enter(self, held: LeaseEntry, span: Span, *, beaten: bool = False) -> None:
        """Come to a span of the run, as the task's process does."""
        assert held.slot
        spans.enter(self.board, held.slot, span, beaten=beaten)

    def beat(self, held: LeaseEntry) -> None:
        """Beat as the task does while its gate is open."""
        self.write(held, beatboard.BEAT)

    def flags_of(self, held: LeaseEntry) -> int | None:
        """Return the flags that the task reads."""
        assert held.slot
        return self.board.read_flags(held.slot)

    def gate(self, held: LeaseEntry) -> float:
        """Return until when the task's beats pass; 0.0: its next beat reads flags."""
        assert held.slot
        return self.board.read_time(held.slot, beatboard.GATE)

    def loop_turns(self) -> None:
        """Let the main loop show that it lives."""
        self.leases.loop_seen = self.clock.now()

    def passed(self, seconds: float = 0.0) -> Report:
        """Let time pass, then let the keeper look once."""
        self.clock.advance(seconds)
        return self.keeper.run_once()
