"""How fast a worker drains a queue of no-op tasks, leased and plain."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.app import PLAIN
from benchmarks.bench import moment
from benchmarks.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks.bench import Bench, Scene
    from harness.workers import Worker


@dataclass
class Drains:
    """What the drains of one kind of task took."""

    rates: list[float] = field(default_factory=list)  #: tasks a second
    loads: list[float] = field(default_factory=list)  #: milliseconds of the main process a task


#: No further pair is begun after so many seconds.
BUDGET = 40.0


def ratio(bench: Bench, pairs: int = 9, count: int = 400) -> list[Figure]:
    """Drain queues in turn, leased, plain, plain, leased and so on, and compare each pair.

    All messages are in their queue before a worker is told to consume it. The plain tasks' worker
    has not even imported celery-lease. Both live all the time, so that what disturbs the machine
    disturbs both.
    """
    plain, leased = Drains(), Drains()
    kinds = {"leased": leased, "plain": plain}
    with bench.scene("throughput") as scene:
        env = {"leased": {}, "plain": {PLAIN: "1"}}
        workers = {kind: scene.worker(concurrency=2, env=env[kind]) for kind in kinds}
        for kind, worker in workers.items():
            drain(scene, worker, Drains(), kind=kind, queue=f"warm-{kind}", count=min(count, 200))
        for kind, queue in in_turn(kinds, pairs):
            drain(scene, workers[kind], kinds[kind], kind=kind, queue=queue, count=count)
    return [
        Figure(
            name="throughput of no-op leased tasks, beside plain late-ack tasks",
            unit="x plain",
            target=1.2,
            measured=median_of_ratios(leased.rates, plain.rates),
            at_least=True,
            digits=2,
            details={"tasks": count, "plain": asdict(plain), "leased": asdict(leased)},
        ),
        Figure(
            name="processor time of the main process a no-op task",
            unit="x plain",
            target=1.0,
            measured=median_of_ratios(leased.loads, plain.loads),
            digits=2,
        ),
    ]


def in_turn(kinds: Iterable[str], pairs: int) -> Iterator[tuple[str, str]]:
    """Yield kinds in alternating order, each with a queue; fewer *pairs* if they take too long."""
    end = time.perf_counter() + BUDGET
    for pair in range(pairs):
        if pair > 1 and time.perf_counter() > end:
            break
        for kind in sorted(kinds, reverse=bool(pair % 2)):
            yield kind, f"{kind}-{pair}"


def median_of_ratios(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def drain(
    scene: Scene, worker: Worker, drains: Drains, *, kind: str, queue: str, count: int
) -> None:
    """Let a worker empty a queue, timed from its first message to its last acknowledgement."""
    scene.publish(f"benchmark.{kind}", count, queue=queue, keyed=kind == "keyed")
    control = scene.setup.app().control
    one: dict[str, Any] = {
        "destination": [worker.hostname],
        "reply": True,
        "timeout": 5,
        "limit": 1,
    }
    asked, used = time.perf_counter(), _processor_time(worker)
    control.add_consumer(queue, **one)
    started = moment(lambda: scene.waiting(queue) < count)
    left, before = scene.waiting(queue), _processor_time(worker)
    if not left:  # a busy machine did all of it between two looks
        started, left, before = asked, count, used
    ended = moment(lambda: not scene.waiting(queue) and not scene.unacked(), every=0.01)
    drains.rates.append(left / (ended - started))
    drains.loads.append((_processor_time(worker) - before) / left * 1000)
    control.cancel_consumer(queue, **one)


def _processor_time(worker: Worker) -> float:
    """Return the seconds that the main process has computed, all its threads together."""
    times = psutil.Process(worker.pid).cpu_times()
    return float(times.user + times.system)
