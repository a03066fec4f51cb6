"""Checkpoints on Redis and Valkey, at the result backend's server or the broker's.

One hash for each task id, and one script that compares fencing tokens and writes in one step. Works
where scripts may take one key of any name, clusters included.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import redis

from celery_lease.brokers.checkpoints import FENCE_KEPT, kept
from celery_lease.brokers.redis.client import Lines, pool_like
from celery_lease.brokers.redis.keys import Keys
from celery_lease.brokers.redis.refusals import is_replica

if TYPE_CHECKING:
    from collections.abc import Callable


class RedisCheckpoints:
    """Checkpoints in one database. Thread-safe, and safe across a fork, as the client's pool is."""

    def __init__(
        self,
        pool: redis.ConnectionPool,
        *,
        name: str,
        key: Callable[[str], str],
        expires: int,
        failure_expires: int,
    ) -> None:
        """*key* makes the full key of a task id; both times are seconds, 0 for never."""
        self.name = name
        self._key = key
        self._kept = kept(expires)
        self._failure_expires = failure_expires
        self._lines = Lines(pool)
        self._script = self._lines.client.register_script(_source())

    def save(self, task_id: str, token: int, text: str) -> bool:
        return self._run("save", task_id, token, self._kept, text)[0]

    def load(self, task_id: str, token: int) -> tuple[bool, str | bytes | None]:
        return self._run("load", task_id, token, self._kept)

    def peek(self, task_id: str) -> str | bytes | None:
        """Return the text, if any; the fence stays as it is."""
        text: Any = self._lines.call(lambda client: client.hget(self._key(task_id), "text"))
        return text  # type: ignore[no-any-return]

    def forget(self, task_id: str, token: int) -> bool:
        return self._run("forget", task_id, token, FENCE_KEPT)[0]

    def retire(self, task_id: str, token: int) -> bool:
        return self._run("retire", task_id, token, self._failure_expires)[0]

    def _run(self, command: str, task_id: str, *args: Any) -> tuple[bool, str | bytes | None]:
        """Run the script; once more if the connection broke, as every command may be repeated."""
        keys, values = [self._key(task_id)], [command, *args]
        try:
            reply = self._call(keys, values)
        except redis.RedisError as exc:
            if not (
                is_replica(exc) or isinstance(exc, (redis.ConnectionError, redis.TimeoutError))
            ):
                raise
            reply = self._call(keys, values)
        return reply[0] == 1, reply[1]

    def _call(self, keys: list[str], values: list[Any]) -> list[Any]:
        reply: list[Any] = self._lines.call(
            lambda client: self._script(keys=keys, args=values, client=client)
        )
        return reply


def connect(channel: Any, expires: int) -> RedisCheckpoints:
    """Store checkpoints beside the messages of a kombu *channel*."""
    unacked = Keys.of(channel).unacked
    return RedisCheckpoints(
        pool_like(channel),
        name="the Redis broker",
        key=lambda task_id: f"{unacked}.checkpoint.{task_id}",
        expires=expires,
        failure_expires=expires,
    )


@cache
def _source() -> str:
    return files(__package__).joinpath("checkpoint.lua").read_text()
