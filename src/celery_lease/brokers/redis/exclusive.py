"""Looks at exclusive keys for people: who holds one, who waits for it. Changes nothing.

What a key's state is, and how it changes, is in ``exclusive.lua``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from kombu.utils.encoding import bytes_to_str

from celery_lease.core.keys import KeyUse, KeyUser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import redis

    from celery_lease.brokers.redis.driver import RedisDriver

#: Records read in one call.
PAGE = 500


def in_use(driver: RedisDriver) -> list[KeyUse]:
    """Return the keys of a database that are held or waited for, by their names.

    A holder counts for as long as its lease is valid.
    """
    holding: dict[str, list[KeyUser]] = defaultdict(list)
    waiting: dict[str, list[tuple[str, KeyUser]]] = defaultdict(list)
    for tag, record in _keyed(driver):
        key = record["exclusive"]["key"]
        if "parked" in record:
            place = record["parked"]
            since = int(place.rpartition(".")[2]) / 1e6
            waiting[key].append((f"{place} {tag}", _user(tag, record, since)))
        else:
            holding[key].append(_user(tag, record, 0.0))
    held = _holders(driver, holding)
    found = []
    for key in sorted({*waiting, *(key for key, users in held.items() if users)}):
        parked = [user for _, user in sorted(waiting[key], key=lambda each: each[0])]
        holders = held.get(key, [])
        limits = [each.limit for each in (*parked[-1:], *holders[-1:])]
        found.append(KeyUse(key=key, limit=limits[0], holders=holders, parked=parked))
    return found


def _keyed(driver: RedisDriver) -> Iterator[tuple[str, Any]]:
    """Yield tags and records of messages with a key."""
    claims, cursor = driver.keys.claims[3], None
    while cursor != 0:
        cursor, page = driver.call(_page_of(claims, cursor or 0))
        for tag, text in page.items():
            if b'"exclusive": {' in text:
                record = json.loads(text)
                if "key" in (record.get("exclusive") or {}):
                    yield bytes_to_str(tag), record


def _holders(driver: RedisDriver, users: Mapping[str, list[KeyUser]]) -> dict[str, list[KeyUser]]:
    """Return by key the *users* that hold it under a valid lease, the longest first."""
    found: dict[str, list[KeyUser]] = {}
    names = iter(users)
    while page := list(islice(names, PAGE)):
        now, taken = driver.call(_takers_of(driver, page))
        tags = [tag for each in taken for tag, _ in each]
        expiries = driver.call(_expiries_of(driver, tags)) if tags else {}
        for key, each in zip(page, taken, strict=True):
            by_tag = {user.tag: user for user in users[key]}
            found[key] = [
                replace(by_tag[name], since=since)
                for tag, since in each
                if (name := bytes_to_str(tag)) in by_tag and (expiries[tag] or 0.0) > now
            ]
    return found


def _user(tag: str, record: Any, since: float) -> KeyUser:
    return KeyUser(
        tag=tag,
        task=record.get("task", ""),
        task_id=record.get("id", ""),
        queue=record["queue"],
        worker=record.get("worker", ""),
        since=since,
        limit=record["exclusive"]["limit"],
    )


def _takers_of(driver: RedisDriver, keys: Sequence[str]) -> Callable[[redis.Redis], Any]:
    """Ask for the server's time, and for the tags that took each key, with when they did."""

    def ask(client: redis.Redis) -> tuple[float, list[list[tuple[bytes, float]]]]:
        calls = client.pipeline(transaction=False)
        calls.time()
        for key in keys:
            calls.zrange(f"{driver.keys.unacked}.holders.{key}", 0, -1, withscores=True)
        (seconds, microseconds), *taken = calls.execute()
        return seconds + microseconds / 1e6, taken

    return ask


def _expiries_of(driver: RedisDriver, tags: Sequence[bytes]) -> Callable[[redis.Redis], Any]:
    """Ask when the leases of some tags expire."""

    def ask(client: redis.Redis) -> dict[bytes, float | None]:
        members: Any = tags  # of bytes, which the client's types do not know
        scores: Any = client.zmscore(driver.keys.index, members)
        return dict(zip(tags, scores, strict=True))

    return ask


def _page_of(key: str, cursor: int) -> Callable[[redis.Redis], Any]:
    return lambda client: client.hscan(key, cursor, count=PAGE)
