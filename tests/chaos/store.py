"""Where the tasks' effects go: a Redis of its own, spared from faults, that checks fencing tokens.

It also keeps, for each run, the last moment at which the run saw its lease as held, which is what
overlapping holders are found by.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import redis

ENV = "HARNESS_CHAOS_STORE"
#: KEYS: a task. ARGV: token, effect, the last moment at which the writer held its lease.
WRITE = """
redis.call('HSET', KEYS[1], 'held:' .. ARGV[1], ARGV[3])
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'token') or '0') then
  redis.call('HINCRBY', KEYS[1], 'refused', 1)
  return 0
end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'effect', ARGV[2])
if ARGV[2] == 'done' then
  redis.call('HINCRBY', KEYS[1], 'done', 1)
end
return 1
"""


@dataclass(frozen=True, slots=True)
class Effects:
    """What the store knows of one task."""

    done: int = 0  #: accepted writes of the last effect
    refused: int = 0  #: writes with the token of a former holder
    held: dict[int, float] = field(default_factory=dict)  #: last seen held (wall clock), by token


class Store:
    """One connection to the store."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._write = self._client.register_script(WRITE)

    def write(self, task_id: str, token: int, effect: str, held_at: float) -> bool:
        """Write an effect, or return False: a larger token was here."""
        return bool(self._write(keys=[task_id], args=[token, effect, held_at]))

    def effects(self, task_id: str) -> Effects:
        """Return what became of one task."""
        fields: Any = self._client.hgetall(task_id)
        known = {key.decode(): value for key, value in fields.items()}
        return Effects(
            done=int(known.get("done", 0)),
            refused=int(known.get("refused", 0)),
            held={
                int(key.partition(":")[2]): float(value)
                for key, value in known.items()
                if key.startswith("held:")
            },
        )
