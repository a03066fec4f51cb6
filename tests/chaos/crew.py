"""The workers on duty: who can be hit, who replaces whom, who leaves as told."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.setup import Setup
    from harness.workers import Worker, WorkerFleet, WorkerOptions

#: A worker that was told to stop may take so many seconds, whatever happens meanwhile.
PATIENCE = 60.0


@dataclass(slots=True)
class Crew:
    """A number of workers that is kept up."""

    fleet: WorkerFleet
    setup: Setup
    options: WorkerOptions
    on_duty: list[Worker] = field(default_factory=list)
    stopped: set[Worker] = field(default_factory=set)
    leaving: list[tuple[Worker, float]] = field(default_factory=list)
    died: int = 0  #: ended without being told or killed
    stuck: int = 0  #: did not leave when told to, and had to be killed
    _ready: set[Worker] = field(default_factory=set)

    def add(self) -> Worker:
        """Start one more worker."""
        self.on_duty.append(self.fleet.launch(self.setup, self.options))
        return self.on_duty[-1]

    def replace(self, worker: Worker) -> None:
        """Start another worker in place of one that is gone or going."""
        self.on_duty.remove(worker)
        self.add()

    def restart(self, worker: Worker) -> None:
        """Tell a worker to stop, and start its successor at once."""
        worker.term()
        self.leaving.append((worker, time.monotonic()))
        self.replace(worker)

    def targets(self) -> list[Worker]:
        """Return the workers that consume and are not stopped."""
        for worker in self.on_duty:
            if worker not in self._ready and f"{worker.hostname} ready." in worker.log:
                self._ready.add(worker)
        return [each for each in self.on_duty if each in self._ready - self.stopped]

    def tick(self) -> None:
        """Replace who died, and see off who was told to leave."""
        for worker in [each for each in self.on_duty if each.returncode is not None]:
            self.died += 1
            self.replace(worker)
        now = time.monotonic()
        for worker, asked_at in list(self.leaving):
            if worker.returncode is None and now - asked_at < PATIENCE:
                continue
            if worker.returncode is None:
                self.stuck += 1
                worker.kill_group()
            self.leaving.remove((worker, asked_at))

    def dismiss(self) -> None:
        """Tell all workers to stop and wait until they have."""
        for worker in self.on_duty:
            worker.wait_ready(60).term()
        self.leaving += [(worker, time.monotonic()) for worker in self.on_duty]
        self.on_duty.clear()
        while self.leaving:
            self.tick()
            time.sleep(0.1)
