"""Checks of a Redis or Valkey server: its version, scripts, permissions, memory and persistence.

Read by ``INFO``, which also works on managed servers that refuse ``CONFIG``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis

from celery_lease.brokers.redis import permissions
from celery_lease.brokers.redis.client import pool_like
from celery_lease.core.clock import SystemClock
from celery_lease.core.findings import Examined, Finding, error, notice, ok, warning
from celery_lease.core.offset import Offset

if TYPE_CHECKING:
    from collections.abc import Iterator


OLDEST = (6, 2)  #: ZMSCORE
FULL = 0.9  #: share of ``maxmemory`` above which the server is soon full


def clock(case: Examined) -> Offset | None:
    """Return the difference between the server's clock and this host's."""
    with _client(case) as client:
        client.ping()  # connecting is no part of the round trip
        asked = SystemClock().wall().timestamp()
        seconds, micros = client.time()
        return Offset.of(seconds + micros / 1e6, asked, SystemClock().wall().timestamp())


def check(case: Examined) -> Iterator[Finding]:
    """Yield the findings about the server."""
    with _client(case) as client:
        yield from _scripts(client)
        yield from _permissions(case)
        yield from _waiting(case)
        try:
            info: dict[str, Any] = client.info()
        except redis.exceptions.NoPermissionError as exc:
            yield notice("redis.info", f"version, memory and persistence are unknown: {exc}")
            return
        yield from _server(info)
        yield from _eviction(info)
        yield from _memory(info)
        yield from _persistence(info, _save(client))


def _client(case: Examined) -> redis.Redis:
    """Return a client with timeouts, unlike kombu's."""
    return redis.Redis(connection_pool=pool_like(case.channel))


def _server(info: dict[str, Any]) -> Iterator[Finding]:
    name = f"{info.get('server_name', 'redis')} {info.get('valkey_version', info['redis_version'])}"
    version = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
    if version < OLDEST:
        yield error(
            "redis.version",
            f"the server is {name}",
            "Leases need commands of Redis 6.2.",
            "Update the server.",
        )
    elif info.get("cluster_enabled"):
        yield error(
            "redis.cluster",
            f"{name} is in cluster mode",
            "Kombu keeps a broker's keys in one database, and a lease's script uses several.",
            "Use a server without cluster mode; for more room, several brokers.",
        )
    elif info.get("role") != "master":
        yield error(
            "redis.role",
            f"{name} is a replica",
            "It refuses every write.",
            "Point broker_url at the primary, or use sentinel:// with master_name.",
        )
    else:
        yield ok("redis.version", f"the server is {name}")


def _scripts(client: redis.Redis) -> Iterator[Finding]:
    try:
        client.eval("return redis.call('TIME')", 0)
    except redis.RedisError as exc:
        yield error(
            "redis.scripts",
            f"scripts are refused: {exc}",
            "Each step of a lease is a script.",
            "Allow the broker's user what redis.permissions says.",
        )
    else:
        yield ok("redis.scripts", "scripts may be run")


def _permissions(case: Examined) -> Iterator[Finding]:
    if case.loaded is None:
        return  # the names of dead-letter queues are not known
    found = case.lacking()
    for what, remedy in found:
        yield error("redis.permissions", what, "A worker with leases does not start.", f"{remedy}.")
    by_hand = [] if found else case.lacking(by_hand=True)
    for what, remedy in by_hand:
        why = "A part of this command and of similar ones does not work; workers do."
        yield notice("redis.permissions", what, why, f"{remedy}.")
    if not found and not by_hand:
        yield ok("redis.permissions", "its user may do what leases need")


def _waiting(case: Examined) -> Iterator[Finding]:
    if found := permissions.lacking_for_notifications(case.channel):
        yield notice(
            "redis.waiting",
            f"idle workers are not notified of messages: {found[0]}",
            "They read their queues up to 20 times a second; a message waits for up to 0.1 s.",
            f"{found[1]}.",
        )
    else:
        yield ok("redis.waiting", "idle workers are notified of messages")


def _eviction(info: dict[str, Any]) -> Iterator[Finding]:
    policy, limit = str(info.get("maxmemory_policy", "")), int(info.get("maxmemory", 0))
    bounded = f"maxmemory {info.get('maxmemory_human', limit)}" if limit else "no maxmemory"
    what = f"maxmemory-policy is {policy or 'unknown'}, {bounded}"
    if policy == "noeviction" or not policy:
        yield ok("redis.eviction", what)
    elif policy.startswith("allkeys"):
        why = "A server that runs full deletes keys of its choice: queues with all their messages, "
        why += "and the record of those that are held."
        remedy = "Set maxmemory-policy noeviction, and keep caches on another server."
        yield (error if limit else warning)("redis.eviction", what, why, remedy)
    elif limit:
        yield warning(
            "redis.eviction",
            what,
            "A server that runs full deletes keys that expire: results, checkpoints, and the "
            "history by which losses of a message are counted. Messages stay.",
            "Set maxmemory-policy noeviction.",
        )
    else:
        yield notice("redis.eviction", what, "Nothing is evicted while there is no maxmemory.")


def _memory(info: dict[str, Any]) -> Iterator[Finding]:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if limit and used > FULL * limit:
        yield warning(
            "redis.memory",
            f"{used / limit:.0%} of maxmemory is used",
            "A full server takes no more messages. Those that are held can still be acknowledged.",
            "Raise maxmemory, or find out what fills it.",
        )


def _save(client: redis.Redis) -> str | None:
    """Return the schedule of snapshots; None if the server refuses to show it."""
    try:
        answer: dict[Any, Any] = client.config_get("save")
    except redis.RedisError:
        return None
    return str(answer.get("save", ""))


def _persistence(info: dict[str, Any], save: str | None) -> Iterator[Finding]:
    if info.get("aof_enabled"):
        yield from _appending(info)
    elif save:
        yield notice(
            "redis.persistence",
            f"snapshots only (save {save}), no appendonly file",
            "A server that dies forgets everything since its last snapshot: new messages are "
            "lost, and finished ones come back.",
            "Set appendonly yes.",
        )
    elif save is None:
        yield notice(
            "redis.persistence",
            "no appendonly file; whether there are snapshots is unknown",
            "A server without both forgets all messages when it restarts.",
            "Look at the provider's settings for persistence or replicas.",
        )
    else:
        yield warning(
            "redis.persistence",
            "neither an appendonly file nor snapshots",
            "A server that restarts has forgotten all messages, waiting and held.",
            "Set appendonly yes, unless every message can be sent again.",
        )
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield _failing("the last snapshot failed")


def _appending(info: dict[str, Any]) -> Iterator[Finding]:
    if info.get("aof_last_write_status", "ok") != "ok":
        yield _failing("the last write to the appendonly file failed")
    else:
        yield ok("redis.persistence", "an appendonly file is written")


def _failing(what: str) -> Finding:
    return error(
        "redis.persistence",
        what,
        "The server refuses new messages until it can write (stop-writes-on-bgsave-error), or "
        "forgets what it has when it restarts.",
        "Look at the server's log and its disk.",
    )
