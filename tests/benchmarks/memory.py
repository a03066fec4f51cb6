"""What the extension adds to the memory of a worker."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.app import PLAIN
from benchmarks.bench import moment
from benchmarks.figures import Figure

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from harness.workers import Worker

MEBIBYTE = 1024.0


def added(bench: Bench, processes: int = 8, rounds: int = 2) -> Figure:
    """Compare workers that have run the same number of tasks, with and without the extension.

    Proportional set size: memory that processes share is counted once.
    """
    plains, leaseds = [], []
    for _ in range(rounds):
        plains.append(_used(bench, processes, "plain", {PLAIN: "1"}))
        leaseds.append(_used(bench, processes, "leased", {}))
    plain, leased = statistics.mean(plains), statistics.mean(leaseds)
    return Figure(
        name=f"memory added to a worker of {processes} processes",
        unit="MiB",
        target=8,
        measured=max(leased - plain, 0.01),
        digits=1,
        details={"plain": plains, "leased": leaseds},
    )


def _used(bench: Bench, processes: int, kind: str, env: dict[str, str]) -> float:
    with bench.scene("memory") as scene:
        worker = scene.worker(concurrency=processes, env=env)
        scene.publish(f"benchmark.{kind}", 50 * processes)
        moment(lambda: not scene.waiting() and not scene.unacked())
        return pss(worker)


def pss(worker: Worker) -> float:
    """Return the proportional set size of a worker's processes, in MiB."""
    pids = [worker.pid, *worker.children()]
    return sum(map(_of_process, pids)) / MEBIBYTE


def _of_process(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"no Pss of process {pid}")
    return int(found[1])
