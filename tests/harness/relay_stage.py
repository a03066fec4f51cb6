"""One scenario with leased tasks: a database of its own, workers, a ledger."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from harness.setup import Setup
from harness.waiting import eventually
from harness.workers import QUIET_PEERS, Worker, WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from harness.brokers import RedisServer
    from harness.ledger import Entry, Ledger

#: Seconds a lease lasts in these scenarios; intervals follow it.
EXTENSION = 3.0
MODULE = "harness.app_relay"


class RelayStage:
    """A database of *server*, and what happens on it."""

    def __init__(self, server: RedisServer, directory: Path, **conf: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.server = server
        url = server.fresh_url()
        self.setup = Setup(url, conf={"lease_extension": EXTENSION, **conf})
        self.broker: redis.Redis = server.client(self.setup.database)
        self.fleet = WorkerFleet(directory)

    @property
    def ledger(self) -> Ledger:
        return self.fleet.ledger

    def launch(
        self, pool: str = "prefork", concurrency: int = 1, *extra: str, **env: str
    ) -> Worker:
        """Start a worker and return at once."""
        options = WorkerOptions(
            module=MODULE, pool=pool, concurrency=concurrency, extra=(*QUIET_PEERS, *extra), env=env
        )
        return self.fleet.launch(self.setup, options)

    def start(self, pool: str = "prefork", concurrency: int = 1, *extra: str, **env: str) -> Worker:
        """Start a worker and return it ready."""
        return self.launch(pool, concurrency, *extra, **env).wait_ready()

    def send(self, name: str, *args: object, **options: Any) -> str:
        """Send a task by its short name and return its id."""
        with self.setup.app() as app:
            return str(app.send_task(f"relay.{name}", args, **options).id)

    def send_many(self, count: int, name: str, *args: object) -> list[str]:
        """Send a task some times and return the ids."""
        with self.setup.app() as app, app.connection_for_write() as connection:
            return [
                str(app.send_task(f"relay.{name}", args, connection=connection).id)
                for _ in range(count)
            ]

    def runs(self, task_id: str) -> list[tuple[str, int]]:
        """Return what happened to a task: event and delivery, in their order."""
        return [
            (entry.event, entry.facts["deliveries"])
            for entry in self.ledger.entries(task_id=task_id)
        ]

    def wait(self, event: str, task_id: str | None = None, **options: Any) -> Entry:
        """Return the latest entry of an event once there is one."""
        return self.ledger.wait(event, task_id, **options)[-1]

    def waiting(self) -> int:
        """Return how many messages a worker could take."""
        return self.broker.llen("celery")

    def held(self) -> int:
        """Return how many messages the broker holds as delivered."""
        return self.broker.hlen("unacked")

    def is_settled(self) -> bool:
        """Return whether nothing is waiting or held, in any of the broker's records."""
        left = self.broker.zcard("unacked_index") + self.broker.zcard("unacked.leases")
        return not (self.waiting() or self.held() or left or self.broker.hlen("unacked.claims"))

    def wait_settled(self, within: float = 10.0) -> None:
        """Return once everything is settled."""
        eventually(self.is_settled, within, what=f"{self.waiting()} waiting, {self.held()} held")

    def claims(self) -> dict[str, Any]:
        """Return the broker's records of what is held, by task id."""
        records = map(json.loads, self.broker.hvals("unacked.claims"))
        return {record["id"]: record for record in records}

    def close(self) -> None:
        self.fleet.close()
        self.broker.close()
