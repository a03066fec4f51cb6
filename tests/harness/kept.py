"""What the stores of checkpoints really hold: in a Redis database, and in pgmq's table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import redis

if TYPE_CHECKING:
    from harness.postgres import Database


TABLE = "pgmq.celery_lease_checkpoints"


class Kept(Protocol):
    """The checkpoints of one database, fences included."""

    def names(self) -> list[str]:
        """Return what they are stored under."""
        ...

    def fields(self, key: str) -> list[str]:
        """Return which of token and text are stored there."""
        ...

    def text(self, key: str) -> str:
        """Return a stored text."""
        ...

    def seconds(self, key: str) -> float:
        """Return the seconds until one expires; -1: never."""
        ...


class RedisKept:
    """Hashes of a database."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _client(self) -> Any:
        return redis.Redis.from_url(self._url, decode_responses=True, socket_timeout=5)

    def names(self) -> list[str]:
        with self._client() as client:
            return [key for key in client.scan_iter() if ".checkpoint" in key]

    def fields(self, key: str) -> list[str]:
        with self._client() as client:
            return sorted(client.hkeys(key), reverse=True)

    def text(self, key: str) -> str:
        with self._client() as client:
            return str(client.hget(key, "text"))

    def seconds(self, key: str) -> float:
        with self._client() as client:
            return float(client.ttl(key))


class PgmqKept:
    """Rows of a table, which the first checkpoint creates."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _rows(self, columns: str, key: str | None = None) -> list[Any]:
        ((table,),) = self._database.execute("SELECT to_regclass(%s)", TABLE)
        if table is None:
            return []
        statement = f"""
            SELECT {columns} FROM {TABLE} WHERE %s::text IS NULL OR id = %s"""  # noqa: S608  (ours)
        return self._database.execute(statement, key, key)

    def names(self) -> list[str]:
        return [id_ for (id_,) in self._rows("id")]

    def fields(self, key: str) -> list[str]:
        ((has_text,),) = self._rows("text IS NOT NULL", key)
        return ["token", "text"] if has_text else ["token"]

    def text(self, key: str) -> str:
        ((text,),) = self._rows("text", key)
        return str(text)

    def seconds(self, key: str) -> float:
        column = (
            "CASE WHEN expires = 'infinity' THEN -1 ELSE extract(epoch FROM expires - now()) END"
        )
        ((seconds,),) = self._rows(column, key)
        return float(seconds)
