"""The storm: messages pour in while workers are restarted, one after another."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.workers import Worker, WorkerOptions
from storm.verdict import Verdict, judge
from storm.weather import drops

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from harness.setup import Setup
    from harness.workers import WorkerFleet

#: A worker that was told to stop may take this long, in seconds, before it is killed.
PATIENCE = 30.0
#: The storm is over when nothing was completed for so many seconds.
SILENCE = 15.0
#: Records of leases and of plain deliveries; all of them are empty at the end.
KEYS = ("celery", "unacked", "unacked_index", "unacked.leases", "unacked.claims")
CONF = {
    "lease_extension": 15,
    "lease_shutdown_timeout": 10,
    "worker_prefetch_multiplier": 4,
    "task_ignore_result": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StormOptions:
    """What to stage. Times are seconds."""

    seconds: float
    seed: int
    workers: int = 3
    every: float = 2.0  #: between two SIGTERMs, each to another worker
    pool: str = "prefork"
    concurrency: int = 2
    slowest: float = 5.0  #: messages a second
    fastest: float = 120.0


@dataclass(slots=True)
class Storm:
    """One storm on one database."""

    options: StormOptions
    setup: Setup
    fleet: WorkerFleet
    client: redis.Redis
    sent: dict[str, str] = field(default_factory=dict)  #: task id to kind; the sender's thread
    restarts: int = 0
    killed: int = 0
    failed: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> Verdict:
        """Stage it and return what became of the messages."""
        began = time.monotonic()
        workers = [self._launch() for _ in range(self.options.workers)]
        for worker in workers:
            worker.wait_ready()
        sender = threading.Thread(target=self._send)
        sender.start()
        try:
            self._restart_again_and_again(workers)
        finally:
            self._over.set()
            sender.join()
        self._until_silent()
        for worker in [each for each in self.fleet.workers if each.returncode is None]:
            self._end(worker)
        completed, lost, twice, moved = judge(self.sent, self.fleet.ledger.entries())
        return Verdict(
            sent=_count(self.sent),
            completed=completed,
            lost=lost,
            twice=twice,
            left=self._left(),
            restarts=self.restarts,
            killed=self.killed,
            failed=self.failed,
            moved=moved,
            seconds=time.monotonic() - began,
        )

    def _launch(self) -> Worker:
        options = self.options
        return self.fleet.launch(
            self.setup.having(**CONF),
            WorkerOptions(module="storm.app", pool=options.pool, concurrency=options.concurrency),
        )

    def _send(self) -> None:
        options, app = self.options, self.setup.app()
        with app.producer_or_acquire() as producer:
            for drop in drops(options.seed, options.slowest, options.fastest):
                if self._over.wait(drop.gap):
                    return
                result = app.send_task(
                    "storm.drop", [drop.seconds], countdown=drop.countdown, producer=producer
                )
                self.sent[str(result.id)] = drop.kind

    def _restart_again_and_again(self, workers: list[Worker]) -> None:
        """Tell one worker after another to stop; each has a successor as soon as it is told."""
        ends = time.monotonic() + self.options.seconds
        leaving: list[tuple[Worker, float]] = []
        for place in self._places():
            if time.monotonic() >= ends:
                break
            # One that is not ready yet has taken nothing; it dies of the signal, as any program.
            workers[place].wait_ready(60)
            workers[place].term()
            self.restarts += 1
            leaving.append((workers[place], time.monotonic()))
            workers[place] = self._launch()
            self._see_off(leaving)
        for worker, _ in leaving:
            self._settle(worker)

    def _places(self) -> Iterator[int]:
        """Yield whose turn it is, every so often, not quite regularly."""
        chance = random.Random(self.options.seed)
        for place in itertools.cycle(range(self.options.workers)):
            time.sleep(self.options.every * chance.uniform(0.8, 1.2))
            yield place

    def _see_off(self, leaving: list[tuple[Worker, float]]) -> None:
        for worker, asked_at in list(leaving):
            if worker.returncode is not None or time.monotonic() - asked_at > PATIENCE:
                self._settle(worker)
                leaving.remove((worker, asked_at))

    def _end(self, worker: Worker) -> None:
        worker.wait_ready()
        worker.term()
        self._settle(worker)

    def _settle(self, worker: Worker) -> None:
        """Note how a worker that was told to stop has left; kill one that has not."""
        try:
            self.failed += worker.wait(PATIENCE) != 0
        except AssertionError:
            self.killed += 1
            worker.kill_group()

    def _until_silent(self) -> None:
        """Wait until all is completed, or nothing has been for a while."""
        seen, since = -1, time.monotonic()
        while seen < len(self.sent) and time.monotonic() - since < SILENCE:
            time.sleep(0.5)
            ends = len({each.task_id for each in self.fleet.ledger.entries("end")})
            if ends > seen:
                seen, since = ends, time.monotonic()

    def _left(self) -> int:
        return sum(self._length(key) for key in KEYS)

    def _length(self, key: str) -> int:
        lengths = {
            "list": self.client.llen,
            "hash": self.client.hlen,
            "zset": self.client.zcard,
            "none": lambda _: 0,
        }
        return int(lengths[self.client.type(key).decode()](key))  # type: ignore[union-attr]


def _count(sent: dict[str, str]) -> Counter[str]:
    return Counter(sent.values())
