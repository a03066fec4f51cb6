"""A worker without a prefetch limit takes all that waits, and holds it beside one long task."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.app import PLAIN
from benchmarks.bench import moment
from benchmarks.figures import Figure
from benchmarks.throughput import processor_time

if TYPE_CHECKING:
    from benchmarks.bench import Bench

#: Seconds after which a worker does no more of what follows its last message.
SETTLES = 3.0


@dataclass(frozen=True, slots=True)
class Held:
    """What one worker did."""

    intake: float  #: messages a second
    load: float  #: processor time of its main process while it holds them, % of one processor


def held(bench: Bench, count: int = 20_000, still: float = 20.0) -> list[Figure]:
    """Compare stock Celery's worker with leased ones, whose leases are long and short."""
    stock = _hold(bench, "plain", count, still)
    long, short = (_hold(bench, "leased", count, still, lease_extension=s) for s in (300.0, 6.0))
    figures = [
        Figure(
            name=f"intake of {count:,} messages without a prefetch limit",
            unit="x stock",
            target=1.0,
            measured=long.intake / stock.intake,
            at_least=True,
            digits=2,
            details={"leased": long.intake, "stock": stock.intake},
        )
    ]
    for seconds, target, side in ((300, 1.0, long), (6, 6.0, short)):
        figures.append(
            Figure(
                name=f"processor time of a worker that holds {count:,} leases of {seconds} s",
                unit="%",
                target=target,
                measured=side.load,
                digits=1,
                details={"stock": stock.load},
            )
        )
    return figures


def _hold(bench: Bench, task: str, count: int, still: float, **conf: Any) -> Held:
    """Let a worker whose one process is busy take all messages of a queue."""
    busy, env = ("pause", {PLAIN: "1"}) if task == "plain" else ("work", {})
    with bench.scene("backlog", worker_prefetch_multiplier=0, **conf) as scene:
        worker = scene.worker(env=env)
        scene.publish(f"benchmark.{busy}", 1, 600.0)
        scene.fleet.ledger.wait("start")
        scene.publish(f"benchmark.{task}", count, queue="backlog")
        control = scene.setup.app().control
        control.add_consumer("backlog", destination=[worker.hostname], reply=True, limit=1)
        begun = moment(lambda: scene.waiting("backlog") < count)
        left = scene.waiting("backlog")
        ended = moment(lambda: scene.waiting("backlog") == 0, within=120)
        time.sleep(SETTLES)
        before, used = time.perf_counter(), processor_time(worker)
        time.sleep(still)
        load = (processor_time(worker) - used) / (time.perf_counter() - before) * 100
        if scene.unacked() != count + 1:
            raise RuntimeError("the worker does not hold all messages")
    return Held(max(left, 1) / (ended - begun), load)
