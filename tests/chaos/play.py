"""Chaos: messages keep coming while workers, task processes, connections and broker are hit."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kombu.exceptions import OperationalError

from chaos.app import STEP
from chaos.crew import Crew
from chaos.faults import Faults
from chaos.store import ENV, Store
from chaos.verdict import Verdict, judge
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from chaos.broker import Broker
    from harness.brokers import RedisServer
    from harness.workers import WorkerFleet

LEASE = 4.0
CONF = {
    "lease_extension": LEASE,
    "lease_shutdown_timeout": 3,
    "lease_max_deliveries": 1000,
    "worker_prefetch_multiplier": 2,
    "task_ignore_result": True,
}
#: Chaos is over when so many seconds went by without anything being completed: more than a reaper
#: takes to look at a parked message.
SILENCE = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """What to stage. Times are seconds."""

    seconds: float
    seed: int
    workers: int = 3
    concurrency: int = 2
    rate: float = 2.0  #: messages a second
    longest: float = 3.0  #: of one task
    between: tuple[float, float] = (0.4, 2.4)  #: from one fault to the next
    keys: int = 0  #: exclusive keys of the tasks; 0: they have none


@dataclass(slots=True)
class Chaos:
    """One staging."""

    options: ChaosOptions
    broker: Broker
    store: RedisServer
    fleet: WorkerFleet
    sent: list[str] = field(default_factory=list)  #: task ids; the sender's thread
    keys: dict[str, str] = field(default_factory=dict)  #: of the tasks; likewise
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> Verdict:
        """Stage it and return what became of the messages."""
        began = time.monotonic()
        chance = random.Random(self.options.seed)
        crew = Crew(self.fleet, self.broker.setup.having(**CONF), self._worker())
        for worker in [crew.add() for _ in range(self.options.workers)]:
            worker.wait_ready(60)
        faults = Faults(chance, crew, self.broker, LEASE)
        sender = threading.Thread(target=self._send, args=(faults,))
        sender.start()
        try:
            self._hit(crew, faults, chance)
        finally:
            self._over.set()
            sender.join()
        self._until_silent(crew)
        crew.dismiss()
        return self._verdict(crew, faults, time.monotonic() - began)

    def _worker(self) -> WorkerOptions:
        return WorkerOptions(
            module="chaos.app",
            concurrency=self.options.concurrency,
            env={ENV: self.store.url()},
        )

    def _send(self, faults: Faults) -> None:
        chance, app = random.Random(self.options.seed + 1), self.broker.setup.app()
        while not self._over.wait(chance.expovariate(self.options.rate)):
            steps = int(chance.uniform(1, self.options.longest / STEP))
            key = f"key-{chance.randrange(self.options.keys)}" if self.options.keys else ""
            with faults.calm, app.connection_for_write() as connection:
                if time.monotonic() < faults.paused_until + 0.5:
                    continue
                try:
                    connection.ensure_connection(max_retries=1)
                except OperationalError:  # the machine is too busy for it to go on at once
                    continue
                # Nothing is declared: a stopped worker may hold what that needs.
                sent = app.send_task(
                    "chaos.work",
                    [steps],
                    connection=connection,
                    headers={"lease_key": key},
                    declare=[],
                )
            self.sent.append(str(sent.id))
            self.keys[str(sent.id)] = key

    def _hit(self, crew: Crew, faults: Faults, chance: random.Random) -> None:
        ends = time.monotonic() + self.options.seconds
        while time.monotonic() < ends:
            next_at = time.monotonic() + chance.uniform(*self.options.between)
            while time.monotonic() < next_at:
                time.sleep(0.05)
                faults.tick()
                crew.tick()
            faults.stage()
        faults.tick(end=True)
        time.sleep(max(0.0, faults.paused_until - time.monotonic()))

    def _until_silent(self, crew: Crew) -> None:
        store, since, open_ = Store(self.store.url()), time.monotonic(), set(self.sent)
        while open_ and time.monotonic() - since < SILENCE:
            time.sleep(0.5)
            crew.tick()
            done = {task_id for task_id in open_ if store.effects(task_id).done}
            if done:
                open_, since = open_ - done, time.monotonic()

    def _verdict(self, crew: Crew, faults: Faults, seconds: float) -> Verdict:
        store = Store(self.store.url())
        effects = {task_id: store.effects(task_id) for task_id in self.sent}
        return Verdict(
            seed=self.options.seed,
            seconds=seconds,
            sent=len(self.sent),
            findings=judge(effects, self.fleet.ledger.entries(), self.keys),
            staged=faults.staged,
            left=self.broker.left(),
            died=crew.died,
            stuck=crew.stuck,
        )
