"""Real ``celery worker`` processes."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from harness import ledger
from harness.ledger import Ledger
from harness.processes import LocalProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.setup import Setup

TESTS = Path(__file__).parent.parent
#: Without these a worker waits a second for its peers, and talks to them.
QUIET_PEERS = ("--without-mingle", "--without-gossip")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The command line of a worker."""

    module: str = "harness.app"
    pool: str = "prefork"
    concurrency: int = 1
    loglevel: str = "INFO"  #: readiness is read from the log: INFO or DEBUG
    queues: str = "celery"
    extra: tuple[str, ...] = QUIET_PEERS
    env: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()  #: a command that prepares the ground and then starts the worker

    def command(self, hostname: str) -> list[str]:
        return [
            *self.prefix,
            *(sys.executable, "-m", "celery", "-A", self.module, "worker"),
            *("-n", hostname, "-P", self.pool, "-c", str(self.concurrency)),
            *("-l", self.loglevel, "-Q", self.queues, *self.extra),
        ]


class Worker(LocalProcess):
    """One worker; signals go to its main process unless a method says group."""

    def __init__(
        self, setup: Setup, hostname: str, directory: Path, options: WorkerOptions
    ) -> None:
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        super().__init__(
            options.command(hostname),
            directory / f"{hostname.partition('@')[0]}.log",
            env={
                **setup.env(),
                "PYTHONPATH": path,
                "PYTHONUNBUFFERED": "1",
                ledger.ENV: str(directory / "ledger.jsonl"),
                **options.env,
            },
        )
        self.hostname = hostname

    def wait_ready(self, within: float = 90.0) -> Self:
        """Return once the worker consumes."""
        return self.wait_log(f"{self.hostname} ready.", within)

    def children(self) -> list[int]:
        """Return the ids of the living processes that it started, the oldest first."""
        return sorted(process.pid for process in self.family() if process.pid != self.pid)


class WorkerFleet:
    """Starts workers in one directory, with one ledger, and ends them all.

    Fleets that share a broker need a *host* each: no two workers of one name.
    """

    def __init__(self, directory: Path, host: str = "harness") -> None:
        self.directory = directory
        self.host = host
        self.ledger = Ledger(directory / "ledger.jsonl")
        self.workers: list[Worker] = []
        self._numbers = itertools.count(1)

    def launch(self, setup: Setup, options: WorkerOptions | None = None) -> Worker:
        """Start a worker and return at once; several can then boot at the same time."""
        hostname = f"w{next(self._numbers)}@{self.host}"
        worker = Worker(setup, hostname, self.directory, options or WorkerOptions())
        self.workers.append(worker)
        worker.start()
        return worker

    def start(self, setup: Setup, options: WorkerOptions | None = None) -> Worker:
        """Start a worker and return it ready."""
        return self.launch(setup, options).wait_ready()

    def start_many(
        self, count: int, setup: Setup, options: WorkerOptions | None = None
    ) -> list[Worker]:
        """Start some workers at the same time and return them ready."""
        workers = [self.launch(setup, options) for _ in range(count)]
        return [worker.wait_ready() for worker in workers]

    def close(self) -> None:
        """End all workers and their children."""
        for worker in self.workers:
            worker.close()
