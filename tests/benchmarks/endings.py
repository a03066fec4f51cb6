"""How soon work is elsewhere after a worker was killed or asked to stop."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.bench import moment
from benchmarks.figures import Figure

if TYPE_CHECKING:
    from benchmarks.bench import Bench

EXTENSION, REAPER = 3.0, 1.0


def takeover(bench: Bench, tasks: int = 4) -> Figure:
    """Kill a worker with all its processes; another one, idle, restarts its tasks."""
    with bench.scene("takeover", lease_extension=EXTENSION, lease_reaper_interval=REAPER) as scene:
        first = scene.worker(concurrency=tasks)
        scene.publish("benchmark.work", tasks, 60.0)
        ledger = scene.fleet.ledger
        ledger.wait("start", count=tasks)
        scene.worker(concurrency=tasks)
        moment(lambda: _beaten(ledger.path.stat().st_mtime))
        killed = time.clock_gettime(time.CLOCK_BOOTTIME)
        first.kill_group()
        starts = ledger.wait("start", count=2 * tasks, within=60)[tasks:]
    took = sorted(entry.at - killed for entry in starts)
    return Figure(
        name=f"killed worker to task restarted elsewhere (extension {EXTENSION:g} s, "
        f"reaper {REAPER:g} s)",
        unit="s",
        target=EXTENSION + REAPER + 1,
        measured=took[-1],
        digits=1,
        details={"each": took},
    )


def _beaten(started: float, intervals: float = 3.0) -> bool:
    """Whether the tasks have run for long enough to have been extended."""
    return time.time() - started > intervals * EXTENSION / 5


def requeue(bench: Bench, reserved: int = 20) -> Figure:
    """Ask a worker to stop whose one process is busy for longer than anybody waits."""
    conf = {"worker_prefetch_multiplier": reserved + 1, "lease_extension": 30.0}
    with bench.scene("hand-back", **conf) as scene:
        worker = scene.worker()
        scene.publish("benchmark.work", reserved + 1, 60.0)
        scene.fleet.ledger.wait("start")
        moment(lambda: scene.unacked() == reserved + 1)
        asked = time.perf_counter()
        worker.term()
        took = moment(lambda: scene.waiting() == reserved, every=0.002) - asked
        if scene.unacked() != 1:
            raise RuntimeError("the running task's message was given away too")
    return Figure(
        name=f"SIGTERM to {reserved} reserved messages back in their queue",
        unit="s",
        target=1,
        measured=took,
        digits=2,
    )
