"""Redis and Valkey: a script compares and writes in one step.

Lua's numbers are exact to 2**53; tokens are microseconds since 1970, which reach that in 2255.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.fenced_writes import StaleError

if TYPE_CHECKING:
    from redis import Redis

WRITE = """
local newest = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
if tonumber(ARGV[1]) < newest then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'value', ARGV[2])
return 1
"""


def write(client: Redis, job: str, token: int, value: str) -> None:
    """Write *value*; raise ``StaleError`` if a newer holder has written."""
    if not client.eval(WRITE, 1, f"result:{job}", token, value):
        raise StaleError(job, token)
