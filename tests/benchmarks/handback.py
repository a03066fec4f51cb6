"""From the signal to the last message back, pool by pool, beside stock Celery in the same run.

::

    python -m tests.benchmarks.handback --runs 20

A worker holds reserved messages (their countdown is far off) and runs one task when it gets
SIGTERM. Leased and stock workers take turns, so that what disturbs the machine disturbs both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `benchmarks` and `harness`

from benchmarks.app import PLAIN
from benchmarks.bench import Bench, Scene, moment

POOLS = ("prefork", "threads", "gevent", "eventlet", "solo")
RESERVED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A worker that is compared: its tasks, and what it is told by the environment."""

    name: str
    waits: str  #: the task of the reserved messages
    runs: str  #: the task that runs
    env: dict[str, str] = field(default_factory=dict)


LEASED = Kind(name="leased", waits="benchmark.leased", runs="benchmark.work")
STOCK = Kind(name="stock", waits="benchmark.plain", runs="benchmark.pause", env={PLAIN: "1"})


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.handback")
    parser.add_argument("--runs", type=int, default=20, help="a pool; default: %(default)s")
    parser.add_argument("--pools", default=",".join(POOLS), help="default: %(default)s")
    parser.add_argument("--busy", type=float, default=5.0, help="seconds of the running task")
    options = parser.parse_args()
    _say("| pool | leased, median | worst | stock Celery, median | worst |")
    _say("| --- | ---: | ---: | ---: | ---: |")
    with Bench.open() as bench:
        for pool in options.pools.split(","):
            took: dict[str, list[float]] = {LEASED.name: [], STOCK.name: []}
            for _ in range(options.runs):
                for kind in (LEASED, STOCK):
                    took[kind.name].append(requeue(bench, pool, kind, options.busy))
            _say(f"| {pool} | {_cells(took[LEASED.name])} | {_cells(took[STOCK.name])} |")
    return 0


def requeue(bench: Bench, pool: str, kind: Kind, busy: float) -> float:
    """Return the seconds from SIGTERM until all reserved messages are in their queue again.

    Args:
        bench: Where to do it.
        pool: Of the worker, with room for one task.
        kind: Which worker.
        busy: Seconds that the running task still takes when the worker is told to stop.
    """
    with bench.scene(f"handback-{pool}-{kind.name}", lease_extension=30.0) as scene:
        worker = scene.worker(pool=pool, concurrency=1, env=kind.env)
        _send(scene, kind.waits, RESERVED, countdown=3600)
        moment(lambda: scene.unacked() == RESERVED)
        _send(scene, kind.runs, 1, busy)
        moment(lambda: scene.unacked() == RESERVED + 1)
        time.sleep(0.5)  # by now it runs
        asked = time.perf_counter()
        worker.term()
        return moment(lambda: scene.waiting() >= RESERVED, every=0.002) - asked


def _send(scene: Scene, task: str, count: int, *args: float, countdown: float = 0.0) -> None:
    app = scene.setup.app()
    with app.producer_or_acquire() as producer:
        for _ in range(count):
            app.send_task(task, args, countdown=countdown, producer=producer, ignore_result=True)


def _cells(took: list[float]) -> str:
    return f"{statistics.median(took):.2f} s | {max(took):.2f} s"


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
