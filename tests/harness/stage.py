"""One broker, the workers on it, and the tasks of one program of this harness."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from harness.tcp_proxy import TcpProxy
from harness.workers import Worker, WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from harness.at_once import Stages
    from harness.brokers import RedisServer
    from harness.ledger import Ledger
    from harness.rabbitmq import RabbitServer
    from harness.setup import Setup

_numbers = itertools.count(1)


class RedisStage:
    """Subclasses name the program, and what suits its tests."""

    program: ClassVar[str]  #: of ``harness.app_PROGRAM``, whose tasks are named ``PROGRAM.*``
    conf: ClassVar[dict[str, Any]]
    extra: ClassVar[tuple[str, ...]] = ()  #: options of every worker

    def __init__(self, setup: Setup, server: RedisServer, fleet: WorkerFleet) -> None:
        self.setup = setup.having(**self.conf)
        self.fleet, self.ledger = fleet, fleet.ledger
        self.app: Celery = self.setup.app()
        self.redis = server.client(self.setup.database)

    def having(self, **conf: Any) -> Self:
        """Give the workers that come further settings."""
        self.setup = self.setup.having(**conf)
        return self

    def worker(
        self, pool: str = "prefork", concurrency: int = 1, *extra: str, **env: str
    ) -> Worker:
        """Start a worker and return it ready; the pool "spawn" is prefork without fork."""
        if pool == "spawn":
            self.having(worker_pool_start_method="spawn")
            pool = "prefork"
        return self.fleet.start(self.setup, self.options(pool, concurrency, *extra, **env))

    def options(
        self, pool: str = "prefork", concurrency: int = 1, *extra: str, **env: str
    ) -> WorkerOptions:
        """Return a worker's command line."""
        return WorkerOptions(
            module=self.module,
            pool=pool,
            concurrency=concurrency,
            extra=(*self.extra, *extra),
            env=env,
        )

    @property
    def module(self) -> str:
        """What a command line names with ``-A``."""
        return f"harness.app_{self.program}"

    def send(self, task: str, *args: Any, **options: Any) -> str:
        """Send a task by its short name and return its id."""
        return str(self.app.send_task(f"{self.program}.{task}", args, **options).id)

    @property
    def queued(self) -> int:
        """How many messages a worker could take."""
        return int(self.redis.llen("celery"))

    @property
    def held(self) -> int:
        """How many messages the broker holds as delivered."""
        return int(self.redis.zcard("unacked_index"))

    def listeners(self) -> int:
        """Return how many connections hear what is sent to all workers."""
        clients, database = self.redis.client_list(), str(self.setup.database)
        return sum(each["db"] == database and each["psub"] != "0" for each in clients)

    def is_clean(self) -> bool:
        """Whether nothing is left of any lease."""
        return not (
            self.held
            or self.redis.hlen("unacked")
            or self.redis.zcard("unacked.leases")
            or self.redis.hlen("unacked.claims")
        )


@dataclass(frozen=True, slots=True)
class RabbitStage:
    """A queue of RabbitMQ and the workers on it."""

    rabbitmq: RabbitServer
    fleet: WorkerFleet
    network: TcpProxy  #: a way to the server that can fall silent
    queue: str = field(default_factory=lambda: f"stage{next(_numbers)}")

    @property
    def ledger(self) -> Ledger:
        return self.fleet.ledger

    def start(self, setup: Setup, pool: str = "prefork", **options: Any) -> Worker:
        """Start a worker with leased tasks and return it ready."""
        command = WorkerOptions(
            module="harness.app_leased", pool=pool, queues=self.queue, **options
        )
        return self.fleet.start(setup, command)


@contextmanager
def rabbit_stage(
    rabbitmq: RabbitServer, _: Stages[RabbitStage], directory: Path
) -> Iterator[RabbitStage]:
    """Open one of several stages at the same server."""
    fleet = WorkerFleet(directory, directory.name)
    with TcpProxy(rabbitmq.port) as network:
        try:
            yield RabbitStage(rabbitmq, fleet, network)
        finally:
            fleet.close()
