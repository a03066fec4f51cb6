"""Looks at exclusive keys for people: who holds one, who waits for it. Changes nothing.

What a key's state is, and how it changes, is in ``exclusive.lua``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import count, islice
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from kombu.utils.encoding import bytes_to_str

from celery_lease.brokers.redis.records import PAGE, pages
from celery_lease.core.keys import KeyUse, KeyUser
from celery_lease.core.records import Recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import redis

    from celery_lease.brokers.redis.driver import RedisDriver


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
            waiting[key].append((f"{place} {tag}", _user(tag, record, _since(place))))
        else:
            holding[key].append(_user(tag, record, 0.0))
    held = _holders(driver, holding)
    found = []
    for key in sorted({*waiting, *(key for key, users in held.items() if users)}):
        parked = [user for _, user in sorted(waiting[key], key=lambda each: each[0])]
        found.append(_use(key, held.get(key, []), parked))
    return found


def use_of(driver: RedisDriver, key: str) -> KeyUse:
    """Return who holds one key and who waits for it; reads their records only."""
    (takers,) = _at_once(driver, [("ZRANGE", f"{driver.keys.unacked}.holders.{key}", 0, -1)])
    places = [_place(member) for member in _members(driver, _line(driver, key))]
    tags = [*(tag for _, tag in places), *map(bytes_to_str, takers)]
    records = _records_of(driver, tags)
    parked = [_user(tag, records[tag], _since(place)) for place, tag in places if tag in records]
    holding = [_user(tag, records[tag], 0.0) for tag in tags[len(places) :] if tag in records]
    return _use(key, _holders(driver, {key: holding})[key], parked)


def awaited_by(driver: RedisDriver, task_id: str) -> str:
    """Return the key for which a task's message waits; "": for none."""
    for page in pages(driver, "parked", task_id):
        for record in page.values():
            return str(record["exclusive"]["key"])
    return ""


def first_parked(driver: RedisDriver, most: int) -> list[Recorded]:
    """Return the first messages of each line, at most *most* in all, and of at most *most* keys.

    The records are searched for keys only if the lines that are known have fewer messages than are
    parked.
    """
    sizes = _sizes(driver, driver.lines)
    if len(sizes) < most and sum(sizes.values()) < sum(driver.parked().values()):
        sizes = _sizes(driver, _awaited(driver, most))
    driver.lines = list(sizes)
    shares = divided(sizes, most)
    firsts = _at_once(
        driver, [("ZRANGE", _line(driver, key), 0, share - 1) for key, share in shares.items()]
    )
    found = [
        (key, position, *_place(member))
        for key, members in zip(shares, firsts, strict=True)
        for position, member in enumerate(members, start=1)
    ]
    records = _records_of(driver, [tag for *_, tag in found])
    return [
        _recorded(tag, records[tag], key, position, _since(place))
        for key, position, place, tag in found
        if tag in records
    ]


def _awaited(driver: RedisDriver, most: int) -> list[str]:
    """Return the keys of parked messages, at most *most*."""
    keys: set[str] = set()
    for page in pages(driver, "parked"):
        keys |= {record["exclusive"]["key"] for record in page.values()}
        if len(keys) >= most:
            break
    return sorted(keys)[:most]


def _line(driver: RedisDriver, key: str) -> str:
    return f"{driver.keys.unacked}.parked.{key}"


def _members(driver: RedisDriver, line: str) -> Iterator[bytes]:
    """Yield the members of a line; who leaves it meanwhile may hide another one."""
    for start in count(0, PAGE):
        (page,) = _at_once(driver, [("ZRANGE", line, start, start + PAGE - 1)])
        yield from page
        if len(page) < PAGE:
            return


def _sizes(driver: RedisDriver, keys: Sequence[str]) -> dict[str, int]:
    """Return how many messages wait for each key for which some do."""
    sizes = _at_once(driver, [("ZCARD", _line(driver, key)) for key in keys])
    return {key: size for key, size in zip(keys, sizes, strict=True) if size}


def divided(sizes: Mapping[str, int], most: int) -> dict[str, int]:
    """Divide *most* among lines by their *sizes*: what a short one leaves goes to longer ones."""
    shares: dict[str, int] = {}
    for number, key in enumerate(sorted(sizes, key=lambda key: sizes[key])):
        share = min(sizes[key], most // (len(sizes) - number))
        most -= share
        if share:
            shares[key] = share
    return shares


def _use(key: str, holders: Sequence[KeyUser], parked: Sequence[KeyUser]) -> KeyUse:
    limits = [each.limit for each in (*parked[-1:], *holders[-1:])]
    return KeyUse(key=key, limit=limits[0] if limits else 1, holders=holders, parked=parked)


def _place(member: bytes) -> tuple[str, str]:
    """Return the place and the tag of a member of a line."""
    place, _, tag = bytes_to_str(member).partition(" ")
    return place, tag


def _since(place: str) -> float:
    """Return since when a message waits, in seconds since 1970."""
    return int(place.rpartition(".")[2]) / 1e6


def _keyed(driver: RedisDriver) -> Iterator[tuple[str, Any]]:
    """Yield tags and records of messages with a key."""
    claims, cursor = driver.keys.claims[3], None
    while cursor != 0:
        ask = methodcaller("hscan", claims, cursor or 0, count=PAGE)
        cursor, page = driver.server.call(ask)
        for tag, text in page.items():
            if b'"exclusive": {' in text:
                record = json.loads(text)
                if _has_key(record):
                    yield bytes_to_str(tag), record


def _holders(driver: RedisDriver, users: Mapping[str, list[KeyUser]]) -> dict[str, list[KeyUser]]:
    """Return by key the *users* that hold it under a valid lease, the longest first."""
    found: dict[str, list[KeyUser]] = {}
    names = iter(users)
    while page := list(islice(names, PAGE)):
        now, taken = driver.server.call(_takers_of(driver, page))
        tags = [tag for each in taken for tag, _ in each]
        ask = methodcaller("zmscore", driver.keys.index, tags)
        expiries = dict(zip(tags, driver.server.call(ask) if tags else (), strict=True))
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


def _recorded(tag: str, record: Any, key: str, position: int, since: float) -> Recorded:
    return Recorded(
        tag=tag,
        task_id=record.get("id", ""),
        task=record.get("task", ""),
        queue=record["queue"],
        worker="",
        token=record.get("token", 0),
        deliveries=record["deliveries"] - 1,  # the last one did not take place
        losses=record["losses"],
        since=since,
        remaining=0.0,
        key=key,
        position=position,
    )


def _records_of(driver: RedisDriver, tags: Sequence[str]) -> dict[str, Any]:
    """Return the records of messages with a key, by tag; some may have ended since."""
    found: dict[str, Any] = {}
    for start in range(0, len(tags), PAGE):
        page = tags[start : start + PAGE]
        texts = driver.server.call(methodcaller("hmget", driver.keys.claims[3], page))
        records = {tag: json.loads(text) for tag, text in zip(page, texts, strict=True) if text}
        found |= {tag: record for tag, record in records.items() if _has_key(record)}
    return found


def _has_key(record: Any) -> bool:
    return "key" in (record.get("exclusive") or {})


def _at_once(driver: RedisDriver, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the replies to commands that are sent together."""

    def ask(client: redis.Redis) -> list[Any]:
        calls: Any = client.pipeline(transaction=False)
        for each in commands:
            calls.execute_command(*each)
        return list(calls.execute())

    return driver.server.call(ask)


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
