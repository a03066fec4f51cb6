"""The faults: what is done to a worker, to one of its children, or to the broker."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from chaos.broker import Broker
    from chaos.crew import Crew
    from harness.workers import Worker

#: How often each fault comes, relative to the others.
WEIGHTS = {
    "worker main killed": 3,
    "task process killed": 4,
    "task process stopped": 4,
    "whole worker stopped": 2,
    "worker restarted (SIGTERM)": 3,
    "connections killed": 3,
    "broker paused, shorter than a lease": 2,
    "broker paused, longer than a lease": 1,
    "broker killed and restarted": 2,
}


@dataclass(slots=True)
class Faults:
    """Stages faults, one after the other, some of them lasting; all from one seed."""

    chance: random.Random
    crew: Crew
    broker: Broker
    lease: float
    #: Held while the broker is hit, and while a message is sent: none is sent twice by a retry.
    calm: threading.Lock = field(default_factory=threading.Lock)
    staged: Counter[str] = field(default_factory=Counter)
    paused_until: float = 0.0  #: no message is sent to a paused broker
    _later: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def stage(self) -> None:
        """Stage one fault, where there is a target for it."""
        (name,) = self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        stagers: dict[str, Callable[[], bool]] = {
            "worker main killed": lambda: self._to_worker(self._kill),
            "task process killed": lambda: self._to_child(self._kill_child),
            "task process stopped": lambda: self._to_child(self._stop_child),
            "whole worker stopped": lambda: self._to_worker(self._stop),
            "worker restarted (SIGTERM)": lambda: self._to_worker(self.crew.restart),
            "connections killed": self._kill_connections,
            "broker paused, shorter than a lease": lambda: self._pause_broker(0.1, 0.6),
            "broker paused, longer than a lease": lambda: self._pause_broker(1.1, 1.6),
            "broker killed and restarted": self._restart_broker,
        }
        self.staged[name] += stagers[name]()

    def tick(self, *, end: bool = False) -> None:
        """Let go on what was stopped for long enough; at the end, everything."""
        now = time.monotonic()
        for each in list(self._later):
            if end or each[0] <= now:
                self._later.remove(each)
                each[1]()

    def _for(self, shortest: float, longest: float, then: Callable[[], None]) -> None:
        """Call *then* after a time given in leases."""
        seconds = self.lease * self.chance.uniform(shortest, longest)
        self._later.append((time.monotonic() + seconds, then))

    def _to_worker(self, hit: Callable[[Worker], None]) -> bool:
        workers = self.crew.targets()
        if workers:
            hit(self.chance.choice(workers))
        return bool(workers)

    def _to_child(self, hit: Callable[[int], None]) -> bool:
        children = [pid for worker in self.crew.targets() for pid in worker.children()]
        if children:
            with contextlib.suppress(ProcessLookupError):
                hit(self.chance.choice(children))
        return bool(children)

    def _kill(self, worker: Worker) -> None:
        worker.kill()
        self.crew.replace(worker)

    def _stop(self, worker: Worker) -> None:
        """Stop a worker with all its processes, for longer than its leases."""
        worker.stop_group()
        self.crew.stopped.add(worker)

        def go_on() -> None:
            worker.cont_group()
            self.crew.stopped.discard(worker)

        self._for(1.2, 2.0, go_on)

    @staticmethod
    def _kill_child(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def _stop_child(self, pid: int) -> None:
        """Stop a task process, for shorter or longer than its lease."""
        os.kill(pid, signal.SIGSTOP)

        def go_on() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        self._for(0.2, 2.0, go_on)

    def _kill_connections(self) -> bool:
        with self.calm:
            return self.broker.cut()

    def _pause_broker(self, shortest: float, longest: float) -> bool:
        if time.monotonic() < self.paused_until:
            return False
        seconds = self.lease * self.chance.uniform(shortest, longest)
        with self.calm:
            self.paused_until = time.monotonic() + seconds
            self.broker.pause(seconds)
        return True

    def _restart_broker(self) -> bool:
        with self.calm:
            self.broker.restart()
            self.paused_until = 0.0
        return True
