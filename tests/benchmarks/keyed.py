"""Exclusive keys: how soon the next task of a key starts, and what a free key costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.throughput import Drains, drain, in_turn, median_of_ratios

if TYPE_CHECKING:
    from benchmarks.bench import Bench

KINDS = ("keyed", "leased")
EVENTS = ("end", "start")


def wake(bench: Bench, count: int = 20) -> Figure:
    """Let the tasks of one key run one after the other, in a worker with room for two."""
    with bench.scene("wake") as scene:
        scene.worker(concurrency=2)
        scene.publish("benchmark.one-by-one", count + 1, 0.2)
        ledger = scene.fleet.ledger
        ledger.wait("end", count=count + 1, within=60)
        ends, starts = ([e.at for e in ledger.entries() if e.event == event] for event in EVENTS)
    took = sorted(start - end for end, start in zip(ends, starts[1:], strict=False))
    return Figure(
        name="end of a key's holder to the start of the next task, an idle worker, p95",
        unit="ms",
        target=50,
        measured=took[int(len(took) * 0.95)] * 1000,
        digits=1,
        details={"each": took},
    )


def ratio(bench: Bench, pairs: int = 9, count: int = 400) -> Figure:
    """Drain queues of no-op tasks in turn, with a free key each and without keys."""
    drains = {kind: Drains() for kind in KINDS}
    with bench.scene("keyed") as scene:
        worker = scene.worker(concurrency=2)
        for kind in KINDS:
            drain(scene, worker, Drains(), task=kind, queue=f"warm-{kind}", count=min(count, 200))
        for kind, queue in in_turn(KINDS, pairs):
            drain(scene, worker, drains[kind], task=kind, queue=queue, count=count)
    keyed, leased = (drains[kind] for kind in KINDS)
    return Figure(
        name="throughput of no-op tasks with free keys, beside tasks without keys",
        unit="x unkeyed",
        target=0.95,
        measured=median_of_ratios(keyed.rates, leased.rates),
        at_least=True,
        digits=2,
        details={"cpu": median_of_ratios(keyed.loads, leased.loads), "tasks": count},
    )
