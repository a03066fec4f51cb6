"""Idle workers beside stock Celery's: how soon they start, how they share, and what they cost.

Each side has a server of its own, so that its commands can be counted; rounds alternate.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.app import PLAIN
from benchmarks.bench import MODULE, moment
from benchmarks.figures import Figure
from harness import ledger
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks.bench import Bench, Scene
    from harness.workers import Worker

#: Seconds between two messages: the one before is done.
GAP = 0.03
#: Seconds after which workers do no more of what follows a message.
SETTLES = 3.0


@dataclass
class Side:
    """Workers of one kind, and what was seen of them."""

    kind: str
    scene: Scene
    workers: list[Worker]
    delays: list[float] = field(default_factory=list)  #: ms from publishing to the start
    shares: list[int] = field(default_factory=list)  #: messages of each worker
    commands: list[float] = field(default_factory=list)  #: a second, without Celery's events
    loads: list[float] = field(default_factory=list)  #: ms of processor time a second

    def begin(self) -> None:
        """Forget what came before, and begin to count."""
        self._calls, self._used, self._at = self._counted(), self._computed(), time.perf_counter()

    def end(self) -> None:
        """Note the commands and the processor's time since :meth:`begin`."""
        took = time.perf_counter() - self._at
        self.commands.append((self._counted() - self._calls - 1) / took)
        self.loads.append((self._computed() - self._used) / took * 1000)

    def publish(self, count: int) -> None:
        """Send messages one by one, and note when each was started and by whom."""
        ours = self.scene.fleet.ledger
        known = ours.count("start")
        app = self.scene.setup.app()
        sent: dict[str, float] = {}
        with app.producer_or_acquire() as producer:
            for _ in range(count):
                at = ledger.now()
                name = f"benchmark.{self.kind}-start"
                task = app.send_task(name, producer=producer, ignore_result=True)
                sent[task.id] = at
                time.sleep(GAP)
        starts = ours.wait("start", count=known + count)[known:]
        self.delays += [(entry.at - sent[entry.task_id]) * 1000 for entry in starts]
        by = [entry.worker for entry in starts]
        self.shares = [by.count(worker.hostname) for worker in self.workers]

    def _counted(self) -> int:
        stats: dict[str, dict[str, int]] = self.scene.client.info("commandstats")
        return sum(each["calls"] for name, each in stats.items() if name != "cmdstat_publish")

    def _computed(self) -> float:
        return sum(worker.computed() for worker in self.workers)


def one(bench: Bench) -> list[Figure]:
    """One idle worker of each kind."""
    return measure(bench, 1)


def eight(bench: Bench) -> list[Figure]:
    """Eight idle workers of each kind."""
    return measure(bench, 8)


def busy(bench: Bench, rounds: int = 3, count: int = 60, others: int = 4) -> list[Figure]:
    """One idle worker of each kind, beside processes that compute all the time."""
    with ExitStack() as stack:
        sides = open_sides(stack, bench, 1)
        for _ in range(others):
            stack.enter_context(_computing())
        for number in range(rounds):
            for side in sides[:: -1 if number % 2 else 1]:
                side.publish(count)
    stock, leased = sides
    return list(_starts(stock, leased, f"an idle worker beside {others} busy processes"))


def four(bench: Bench) -> list[Figure]:
    """Four idle workers of each kind share 200 messages."""
    with ExitStack() as stack:
        sides = open_sides(stack, bench, 4)
        for side in sides:
            side.publish(200)
    stock, leased = sides
    return [
        Figure(
            name="shares of 200 messages, 4 idle workers, largest to smallest",
            unit="x",
            target=1.2,
            measured=max(leased.shares) / max(min(leased.shares), 1),
            digits=2,
            details={"leased": leased.shares, "stock": stock.shares},
        )
    ]


def measure(
    bench: Bench, workers: int, *, rounds: int = 3, count: int = 60, still: float = 30.0
) -> list[Figure]:
    """Measure idle workers: first what they do while nothing happens, then how soon they start."""
    with ExitStack() as stack:
        sides = open_sides(stack, bench, workers)
        for _ in range(rounds):
            for side in sides:  # at the same time: what disturbs one disturbs both
                side.begin()
            time.sleep(still)
            for side in sides:
                side.end()
        for number in range(rounds):
            for side in sides[:: -1 if number % 2 else 1]:
                side.publish(count)
    stock, leased = sides
    return list(_figures(stock, leased, workers))


def _figures(stock: Side, leased: Side, workers: int) -> Iterable[Figure]:
    who = "an idle worker" if workers == 1 else f"{workers} idle workers"
    yield from _starts(stock, leased, who)
    yield Figure(
        name=f"commands at the server, {who}",
        unit="a second",
        target=1.2 if workers == 1 else 9.0 / 8 * workers,
        measured=statistics.median(leased.commands),
        digits=2,
        details={"leased": leased.commands, "stock": stock.commands},
    )
    pairs = zip(leased.loads, stock.loads, strict=True)
    yield Figure(
        name=f"processor time, {who}",
        unit="x stock",
        target=1.1,
        measured=statistics.median(one / other for one, other in pairs),
        digits=2,
        details={"leased": leased.loads, "stock": stock.loads},
    )


def _starts(stock: Side, leased: Side, who: str) -> Iterable[Figure]:
    for name, share, more in (("p50", 0.5, 1.0), ("p95", 0.95, 3.0)):
        ours, theirs = (_part(side.delays, share) for side in (leased, stock))
        yield Figure(
            name=f"publish to start, {who}, {name} more than stock",
            unit="ms",
            target=more,
            measured=max(ours - theirs, 0.0),
            digits=2,
            details={"leased": ours, "stock": theirs},
        )


@contextmanager
def _computing() -> Iterator[None]:
    """Have another process compute."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def open_sides(stack: ExitStack, bench: Bench, workers: int) -> list[Side]:
    """Start stock Celery's workers and as many leased ones, each kind at its server."""
    sides = []
    for kind, env in (("plain", {PLAIN: "1"}), ("leased", {})):
        server = bench if kind == "leased" else stack.enter_context(bench.beside())
        scene = stack.enter_context(server.scene(f"idle-{kind}"))
        options = WorkerOptions(module=MODULE, env=env)
        side = Side(kind, scene, scene.fleet.start_many(workers, scene.setup, options))
        side.publish(4 * workers)  # all that is done once for a worker
        side.delays.clear()
        sides.append(side)
    moment(lambda: not any(side.scene.unacked() for side in sides))
    time.sleep(SETTLES)
    return sides


def _part(values: list[float], share: float) -> float:
    """Return the value below which a *share* of them lies."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
