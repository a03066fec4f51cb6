"""The broker under fire, of either kind: what can be done to it, and what is left at it."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import redis

if TYPE_CHECKING:
    from harness.brokers import RedisServer
    from harness.postgres import Database
    from harness.setup import Setup

#: Keys that are empty when every message has ended.
KEYS = ("celery", "unacked", "unacked_index", "unacked.leases", "unacked.claims", "unacked.parked")


TABLE = "pgmq.celery_lease_keys"


class Broker(Protocol):
    """One broker."""

    setup: Setup

    def cut(self) -> bool:
        """End all connections, if the broker can be asked for it now."""

    def pause(self, seconds: float) -> None:
        """Answer nobody for so long."""

    def restart(self) -> None:
        """Kill it, and start it again with its data."""

    def left(self) -> dict[str, int]:
        """Return how much it still keeps, by place."""


@dataclass(slots=True)
class RedisBroker:
    """A database of Valkey."""

    server: RedisServer
    setup: Setup

    def cut(self) -> bool:
        with self.server.client() as client, contextlib.suppress(redis.RedisError):
            client.client_kill_filter(_type="normal")
        return True

    def pause(self, seconds: float) -> None:
        with self.server.client() as client:
            client.client_pause(int(seconds * 1000))

    def restart(self) -> None:
        self.server.restart()

    def left(self) -> dict[str, int]:
        with self.server.client(self.setup.database) as client:
            lengths: dict[bytes, Any] = {
                b"list": client.llen,
                b"hash": client.hlen,
                b"zset": client.zcard,
                b"none": lambda _: 0,
            }
            types: list[Any] = [client.type(key) for key in KEYS]
            found = {key: int(lengths[each](key)) for key, each in zip(KEYS, types, strict=True)}
        return {key: length for key, length in found.items() if length}


@dataclass(slots=True)
class PgmqBroker:
    """A database of PostgreSQL."""

    database: Database
    setup: Setup
    is_paused: bool = False

    def cut(self) -> bool:
        if not self.is_paused:
            self.database.cut()
        return not self.is_paused

    def pause(self, seconds: float) -> None:
        self.is_paused = True
        self.database.server.stop_group()
        threading.Timer(seconds, self._resume).start()

    def _resume(self) -> None:
        self.is_paused = False
        self.database.server.cont_group()

    def restart(self) -> None:
        self._resume()
        self.database.server.stop_now()
        self.database.server.start()

    def left(self) -> dict[str, int]:
        found = {"messages": sum(self.database.counts())}
        if self.database.execute("SELECT to_regclass(%s)", TABLE) != [(None,)]:
            ((found["keys"],),) = self.database.execute(f"SELECT count(*) FROM {TABLE}")  # noqa: S608
        return {place: count for place, count in found.items() if count}
