"""How fast a worker drains a queue of no-op tasks, leased and plain."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    served: list[float] = field(default_factory=list)  #: milliseconds of the server a task


#: No further pair is begun after so many seconds.
BUDGET = 40.0
BESIDE = "beside plain late-ack tasks"


def ratio(bench: Bench, pairs: int = 9, count: int = 400) -> list[Figure]:
    """Leased tasks beside plain ones, with Celery's own prefetch multiplier of 4."""
    leased, plain = compared(bench, "leased", pairs, count)
    return [
        _rate("no-op leased tasks, prefetch multiplier 4, " + BESIDE, 1.2, leased, plain),
        _time("the main process a no-op task", 1.0, leased.loads, plain.loads),
        _time("the server a no-op task", 1.3, leased.served, plain.served),
    ]


def other_multipliers(bench: Bench, pairs: int = 9, count: int = 400) -> list[Figure]:
    """Leased tasks beside plain ones, with other prefetch multipliers."""
    figures = []
    for multiplier, target in ((1, 1.0), (8, 1.2)):
        conf = {"worker_prefetch_multiplier": multiplier}
        drains = compared(bench, "leased", pairs, count, **conf)
        name = f"no-op leased tasks, prefetch multiplier {multiplier}, {BESIDE}"
        figures.append(_rate(name, target, *drains))
    return figures


def plain_beside_leases(bench: Bench, pairs: int = 9, count: int = 400) -> list[Figure]:
    """Plain tasks of a worker that has leased tasks, too, beside those of a stock worker."""
    ours, stock = compared(bench, "plain", pairs, count)
    name = "no-op plain tasks of a worker that has leased ones, beside stock's"
    return [
        _rate(name, 1.0, ours, stock),
        _time("the server such a plain task", 1.1, ours.served, stock.served),
    ]


def compared(bench: Bench, task: str, pairs: int, count: int, **conf: Any) -> tuple[Drains, Drains]:
    """Drain queues in turn, ours, stock's, stock's, ours and so on; return both sides' drains.

    All messages are in their queue before a worker is told to consume it. The stock worker has not
    even imported celery-lease. Both live all the time, so that what disturbs the machine disturbs
    both.
    """
    ours, stock = Drains(), Drains()
    kinds = {"ours": (ours, task, {}), "stock": (stock, "plain", {PLAIN: "1"})}
    with bench.scene("throughput", **conf) as scene:
        workers = {
            kind: scene.worker(concurrency=2, env=env) for kind, (_, _, env) in kinds.items()
        }
        for kind, worker in workers.items():
            queue, few = f"warm-{kind}", min(count, 200)
            drain(scene, worker, Drains(), task=kinds[kind][1], queue=queue, count=few)
        for kind, queue in in_turn(kinds, pairs):
            drains, name, _ = kinds[kind]
            drain(scene, workers[kind], drains, task=name, queue=queue, count=count)
    return ours, stock


def _rate(name: str, target: float, ours: Drains, stock: Drains) -> Figure:
    return Figure(
        name=f"throughput of {name}",
        unit="x plain",
        target=target,
        measured=median_of_ratios(ours.rates, stock.rates),
        at_least=True,
        digits=2,
        details={"ours": asdict(ours), "stock": asdict(stock)},
    )


def _time(whose: str, target: float, ours: list[float], stock: list[float]) -> Figure:
    return Figure(
        name=f"processor time of {whose}",
        unit="x plain",
        target=target,
        measured=median_of_ratios(ours, stock),
        digits=2,
    )


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
    scene: Scene, worker: Worker, drains: Drains, *, task: str, queue: str, count: int
) -> None:
    """Let a worker empty a queue, timed from its first message to its last acknowledgement."""
    scene.publish(f"benchmark.{task}", count, queue=queue, keyed=task == "keyed")
    control = scene.setup.app().control
    one: dict[str, Any] = {
        "destination": [worker.hostname],
        "reply": True,
        "timeout": 5,
        "limit": 1,
    }
    asked = _Reading.of(scene, worker)
    control.add_consumer(queue, **one)
    moment(lambda: scene.waiting(queue) < count)
    before, left = _Reading.of(scene, worker), scene.waiting(queue)
    if not left:  # a busy machine did all of it between two looks
        before, left = asked, count
    moment(lambda: not scene.waiting(queue) and not scene.unacked(), every=0.01)
    after = _Reading.of(scene, worker)
    drains.rates.append(left / (after.at - before.at))
    drains.loads.append((after.worker - before.worker) / left * 1000)
    drains.served.append((after.server - before.server) / left * 1000)
    control.cancel_consumer(queue, **one)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A moment, and the seconds that were computed up to it."""

    at: float
    worker: float
    server: float

    @classmethod
    def of(cls, scene: Scene, worker: Worker) -> _Reading:
        """Read the clocks of the worker's main process, with all its threads, and the server."""
        used: dict[str, float] = scene.client.info("cpu")
        server = used["used_cpu_user"] + used["used_cpu_sys"]
        return cls(time.perf_counter(), processor_time(worker), server)


def processor_time(worker: Worker) -> float:
    """Return the seconds that the main process has computed: by the scheduler, not its ticks."""
    threads = Path(f"/proc/{worker.pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) / 1e9 for each in threads)
