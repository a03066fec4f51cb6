"""Many short runs under leases and on stock Celery side by side, and what each process kept.

Each side has one worker. A fifth of the runs at a time is sent; when all has ended, both of its
processes record their memory, allocated blocks, threads and descriptors. What counts is the growth
from the end of the first fifth to that of the last.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.waiting import eventually
from harness.workers import QUIET_PEERS, WorkerOptions
from soak.app import CROWD, KIND

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.places import Place
    from harness.workers import WorkerFleet

SHARES = 5
#: How many of each hundred runs end how; what is left succeeds.
MIX = {"fail": 8, "retry": 8, "reject": 4, "checkpoint": 8, "progress": 8}
#: Runs of each fifth that lose their lease; these take a second and a half.
LOSSES = 2
POOLS = {"prefork": 1, "threads": 4, "solo": 1, "gevent": 10, "eventlet": 10}
MEBI = 1 << 20


@dataclass(frozen=True, slots=True)
class Growth:
    """What one process had more at the end than after the first fifth."""

    blocks: int
    memory: int
    threads: int
    descriptors: int


class Side:
    """One worker, with leases or without."""

    def __init__(
        self, place: Place, results: str, fleet: WorkerFleet, pool: str, kind: str
    ) -> None:
        self.place, self.fleet, self.kind = place, fleet, kind
        setup = replace(place.setup, backend=results).having(task_ignore_result=False)
        self.app = replace(place, setup=setup).app()
        self.samples: dict[str, list[dict[str, Any]]] = {"main": [], "task": []}
        self.keys: list[int] = []
        self.looks = 0
        options = WorkerOptions(
            module="soak.app",
            queues=place.queue,
            pool=pool,
            concurrency=POOLS[pool],
            extra=(*QUIET_PEERS, "--without-heartbeat"),
            env={KIND: kind, CROWD: str(POOLS[pool])},
        )
        self.crowd = POOLS[pool]
        self.worker = fleet.launch(setup, options)

    def fill(self) -> None:
        """Let it have all the connections that it will ever have at a time."""
        for _ in range(self.crowd):
            self.app.send_task("soak.together")
        eventually(self.is_done, 60, what=f"{self.kind}: a crowd is done")

    def send(self, runs: int) -> None:
        """Send some runs."""
        kinds = [kind for kind, share in MIX.items() for _ in range(runs * share // 100)]
        kinds += ["lose"] * min(LOSSES, runs - 1)
        kinds += ["succeed"] * (runs - len(kinds))
        with self.app.connection_for_write() as connection:
            for kind in kinds:
                self.app.send_task(f"soak.{kind}", connection=connection)

    def is_done(self) -> bool:
        """Whether nothing waits and nothing is held."""
        assert self.worker.returncode is None, self.worker.log[-2000:]
        return self.place.left() == 0

    def main(self) -> dict[str, Any]:
        """Return what the main process has, by itself: not every broker carries remote control."""
        count = self.fleet.ledger.count("main") + 1
        self.worker.send(signal.SIGUSR2)
        return self.fleet.ledger.wait("main", count=count, within=60)[-1].facts

    def is_idle(self) -> bool:
        """Whether it runs no task: one that lost its lease ends after its message does.

        Making the text of one traceback takes thousands of blocks for a moment.
        """
        return bool(self.main()["active"] == 0)

    def look(self, keys: Callable[[Place], int]) -> None:
        """Have both processes record what they have."""
        eventually(self.is_idle, 60, every=0.2, what="what has lost its lease ends")
        self.looks += 1
        self.app.send_task("soak.look")
        found = self.fleet.ledger.wait("task", count=self.looks, within=60)
        self.samples["task"].append(found[-1].facts)
        eventually(self.is_done, 60, what="its message is settled")
        eventually(self.is_idle, 60, every=0.2, what="its task has ended")
        self.samples["main"].append(self.main())
        self.keys.append(keys(self.place))

    def look_again(self, keys: Callable[[Place], int]) -> None:
        """Replace the last look by one of this moment."""
        for samples in (*self.samples.values(), self.keys):
            samples.pop()
        self.look(keys)

    def growth(self, process: str) -> Growth:
        """Return what the "main" or the "task" process kept."""
        first, last = self.samples[process][0], self.samples[process][-1]
        return Growth(**{name: last[name] - first[name] for name in Growth.__slots__})


@dataclass(frozen=True, slots=True)
class Soak:
    """Both sides."""

    leased: Side
    stock: Side

    def run(
        self,
        runs: int,
        keys: Callable[[Place], int] = lambda _: 0,
        meanwhile: Callable[[Side], None] = lambda _: None,
        patience: float = 600,
        before: int = 0,
    ) -> None:
        """Let both do *runs* runs, and in each fifth what the test does *meanwhile*.

        *before* is how many more the first fifth has, where a fifth alone is too short for a
        process to have all that it will ever load.
        """
        for side in (self.leased, self.stock):
            side.worker.wait_ready(120)
            side.fill()
        for share in range(SHARES):
            for side in (self.leased, self.stock):
                side.send(runs // SHARES + (0 if share else before))
            for side in (self.leased, self.stock):
                meanwhile(side)
                eventually(side.is_done, patience, every=0.2, what=f"{side.kind}: all is done")
                side.look(keys)

    def settle(
        self, process: str, blocks: float, keys: Callable[[Place], int] = lambda _: 0
    ) -> Growth:
        """Return by how much more a process with leases grew, once that is below some *blocks*.

        What is there for a moment only goes; what is kept stays, and is returned at last.
        """

        def is_below() -> bool:
            if self.more(process).blocks < blocks:
                return True
            for side in (self.leased, self.stock):
                side.look_again(keys)
            return False

        with suppress(AssertionError):
            eventually(is_below, 30, every=1.0)
        return self.more(process)

    def __str__(self) -> str:
        return "\n".join(f"{side.kind}: {side.samples}" for side in (self.leased, self.stock))

    def threads(self, process: str) -> int:
        """Return how many threads share a process's connections with its main thread.

        Each may hold one at the same time as all others; when most do so is a matter of chance.
        """
        return max(int(sample["threads"]) for sample in self.leased.samples[process]) - 1

    def more(self, process: str) -> Growth:
        """Return by how much more a process with leases grew than a stock one."""
        ours, stock = self.leased.growth(process), self.stock.growth(process)
        return Growth(
            **{
                name: getattr(ours, name) - max(getattr(stock, name), 0)
                for name in Growth.__slots__
            }
        )
