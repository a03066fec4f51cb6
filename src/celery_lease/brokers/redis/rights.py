"""The permissions that a user of the server needs: commands, keys and channels.

Collected from the scripts of this package, ``kombu/transport/redis.py`` 5.5.4 and 5.7.0, and
``celery/backends/redis.py`` 5.5.3 and 5.7.0.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_lease.brokers.redis.keys import Keys
from celery_lease.brokers.redis.watch import NEWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from celery_lease.brokers.use import Use

Command = tuple[str, ...]

#: The commands on each kind of key.
SORTED_SET = "ZADD ZMSCORE ZRANGE ZRANGEBYSCORE ZREM ZREVRANGEBYSCORE ZSCORE"
HASH = "HDEL HEXISTS HGET HMGET HSET"
COUNTER = "GET SET"
LINE, COUNTS = "ZADD ZCARD ZRANGE ZREM ZSCORE", "HDEL HGETALL HINCRBY"
BELL = "BLPOP DEL EXISTS EXPIRE RPUSH"
WATCHER = "DEL GET SET"
HISTORY = "DEL EXPIRE LRANGE LTRIM RPUSH"
CHECKPOINT = "EXPIRE HDEL HGET HSET PERSIST"
MUTEX = "DEL GET SET"
NAMES = "SADD SREM"
BINDING = "DEL EXISTS SADD SMEMBERS SREM"
DEADLINES = "ZADD ZRANGEBYSCORE ZREM"
LIST = "BRPOP DEL EXISTS LLEN LPUSH PEXPIRE RPOP RPUSH"
RESULT = "DEL EXPIRE GET MGET SET SETEX"
CHORD = "DEL EXISTS EXPIRE GET INCR LLEN LRANGE RPUSH SADD SISMEMBER SET ZADD ZCOUNT ZRANGE"
#: Further commands of ``celery lease``, its doctor, and clients of a queue's messages.
LIST_BY_HAND, HASH_BY_HAND, NAMES_BY_HAND = "LPOP LRANGE LREM", "HSCAN", "SMEMBERS"

#: Commands without a key.
PLAIN: tuple[Command, ...] = (
    ("EVAL", "return 1", "0"),
    ("EVALSHA", "0" * 40, "0"),
    ("SCRIPT", "LOAD", "return 1"),
    ("SCRIPT", "EXISTS", "0" * 40),
    ("TIME",),
    ("PING",),
    ("UNWATCH",),
)
#: Needed for notifications of messages; without them idle workers read their queues all the time.
FOR_NOTIFICATIONS: tuple[Command, ...] = (
    ("CLIENT", "ID"),
    ("CLIENT", "TRACKING", "ON"),
    ("CLIENT", "CACHING", "YES"),
    ("CLIENT", "UNBLOCK", "0"),
    ("SUBSCRIBE", NEWS),
)
#: The arguments of a command after its key. None of these is ever run.
_FILLING: dict[str, Command] = {
    **dict.fromkeys(("HGETALL", "LPOP", "RPOP", "ZCARD"), ()),
    **dict.fromkeys(("BLPOP", "BRPOP", "HSCAN", "LINDEX", "EXPIRE", "PEXPIRE"), ("0",)),
    **dict.fromkeys(("HDEL", "HEXISTS", "HGET", "HMGET", "ZMSCORE", "ZREM", "ZSCORE"), ("x",)),
    **dict.fromkeys(("LPUSH", "RPUSH", "SADD", "SREM", "SET", "SISMEMBER"), ("x",)),
    **dict.fromkeys(("LRANGE", "LTRIM", "ZCOUNT", "ZRANGE"), ("0", "0")),
    **dict.fromkeys(("ZRANGEBYSCORE", "ZREVRANGEBYSCORE"), ("0", "0")),
    **dict.fromkeys(("HSET", "SETEX"), ("1", "x")),
    "HINCRBY": ("x", "1"),
    **dict.fromkeys(("LREM", "ZADD"), ("0", "x")),
}
#: Sent by the client library or around a transaction: in the ACL line, but checked in other ways.
#: Redis 7 allows HELLO to everybody, 6.2 does not.
AROUND = frozenset({"EXEC", "HELLO", "MULTI", "WATCH"})
#: A word that redis-cli takes without quotes.
_BARE = re.compile(r"[\w.,:/@*?&~+|>#{}()=%-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """The permissions that one user needs."""

    whose: str
    user: str
    commands: tuple[Command, ...]
    keys: tuple[str, ...]  #: patterns
    channels: tuple[str, ...]  #: patterns
    wanted: tuple[Command, ...] = ()  #: optional

    @property
    def line(self) -> str:
        """The command that grants all of them, and changes nothing else of the user."""
        names = {_rule(each) for each in (*self.commands, *self.wanted)}
        names |= {f"+{each.lower()}" for each in AROUND}
        rules = [*(f"~{each}" for each in self.keys), *(f"&{each}" for each in self.channels)]
        words = ["ACL", "SETUSER", self.user, *rules, *sorted(names)]
        return " ".join(each if _BARE.fullmatch(each) else json.dumps(each) for each in words)


def rights_at_broker(channel: Any, use: Use) -> Rights:
    """Return the permissions that leases and kombu need at the broker, for an app's *use*."""
    prefix = channel.global_keyprefix
    topics = [prefix + channel._get_publish_topic(*each) for each in use.published]  # noqa: SLF001
    followed = [prefix + channel._get_publish_topic(*each) for each in use.followed]  # noqa: SLF001
    commands = [
        *PLAIN,
        *_selecting(channel.pool),
        *_of_records(Keys.of(channel), channel, by_hand=use.by_hand),
        *_of_queues(channel, use),
        *(("PUBLISH", topic, "") for topic in topics),
        *(each for topic in followed for each in (("PSUBSCRIBE", topic), ("PUNSUBSCRIBE", topic))),
    ]
    return Rights(
        whose="the broker's user",
        user=_user(channel.pool),
        commands=tuple(dict.fromkeys(commands)),
        keys=(f"{_literal(prefix)}*",) if prefix else _patterns(channel, use),
        channels=(*dict.fromkeys([*topics, *followed]), NEWS),
        wanted=FOR_NOTIFICATIONS,
    )


def rights_for_notifications(channel: Any) -> Rights:
    """Return the permissions that notifications of messages need."""
    return Rights(
        whose="the broker's user",
        user=_user(channel.pool),
        commands=(
            *_selecting(channel.pool),
            *_on(Keys.of(channel).unacked, "HSET"),
            *FOR_NOTIFICATIONS,
        ),
        keys=(),
        channels=(NEWS,),
    )


def rights_at_results(pool: redis.ConnectionPool, tasks: str, groups: str) -> Rights:
    """Return the permissions that Celery's result backend, chords and checkpoints need.

    Args:
        pool: The backend's pool.
        tasks: The prefix of the keys of tasks.
        groups: The prefix of the keys of groups.
    """
    task = f"{tasks}x"
    commands = [
        *PLAIN,
        *_selecting(pool),
        *_on(task, RESULT),
        *_on(task, CHECKPOINT),
        *_on(f"{groups}x", CHORD),
        *(("PUBLISH", task, ""), ("SUBSCRIBE", task), ("UNSUBSCRIBE", task)),
    ]
    return Rights(
        whose="the result backend's user",
        user=_user(pool),
        commands=tuple(dict.fromkeys(commands)),
        keys=(f"{_literal(tasks)}*", f"{_literal(groups)}*"),
        channels=(f"{_literal(tasks)}*",),
    )


def _of_records(keys: Keys, channel: Any, *, by_hand: bool) -> Iterator[Command]:
    index, unacked, leases, claims = keys.claims
    for key in (index, leases):
        yield from _on(key, SORTED_SET)
    for key in (unacked, claims):
        yield from _on(key, HASH)
    yield from _on(keys.refusals, SORTED_SET)
    yield from _on(keys.token, COUNTER)
    yield from _on(keys.bell, BELL)
    yield from _on(keys.bell_of("x"), BELL)
    yield from _on(keys.watcher_of("x"), WATCHER)
    yield from _on(keys.dead_letter_queues, NAMES)
    for line in ("holders", "parked"):
        yield from _on(f"{unacked}.{line}.x", LINE)
    yield from _on(keys.parked, COUNTS)
    yield from _on(f"{unacked}.history.x", HISTORY)
    yield from _on(f"{unacked}.checkpoint.x", CHECKPOINT)
    yield from _on(keys.prefix + channel.unacked_mutex_key, MUTEX)
    yield from _on(keys.prefix + channel.keyprefix_queue % "x", BINDING)
    yield from _on(f"{keys.prefix}_kombu.binding_deadlines", DEADLINES)
    if by_hand:
        yield from _on(claims, HASH_BY_HAND)
        yield from _on(keys.dead_letter_queues, NAMES_BY_HAND)
        yield ("INFO",)


def _of_queues(channel: Any, use: Use) -> Iterator[Command]:
    """Yield all commands on one list, and for each other list one that shows its permission."""
    prefix, kind = channel.global_keyprefix, LIST
    if use.by_hand:
        kind = f"{LIST} {LIST_BY_HAND}"
    named = [each.replace("*", "x") for each in use.patterns]
    lists = [
        f"{prefix}{channel._q_for_pri(queue, step)}"  # noqa: SLF001
        for queue in (*use.queues, *named)
        for step in channel.priority_steps
    ]
    malformed = [f"{prefix}{queue}.malformed" for queue in use.queues]
    lists += [*malformed, *(prefix + each for each in use.others)]
    for key in lists[:1]:
        yield from _on(key, kind)
    for key in lists[1:]:
        yield from _on(key, "LPUSH")


def _on(key: str, names: str) -> Iterator[Command]:
    for name in names.split():
        yield (name, key, *_FILLING.get(name, ()))


def _selecting(pool: redis.ConnectionPool) -> Iterator[Command]:
    if number := pool.connection_kwargs.get("db"):
        yield ("SELECT", str(number))


def _patterns(channel: Any, use: Use) -> tuple[str, ...]:
    """Return key patterns for a database that Celery shares with other programs."""
    names = [channel.unacked_key, channel.unacked_index_key, channel.unacked_mutex_key]
    names += ["_kombu.binding", *use.queues, *use.others]
    found = [
        f"{_literal(each)}*"
        for each in dict.fromkeys(names)
        if not any(each != other and each.startswith(other) for other in names)
    ]
    return (*found, *use.patterns)


def _literal(text: str) -> str:
    return re.sub(r"([\\*?\[\]])", r"\\\1", text)


def _user(pool: redis.ConnectionPool) -> str:
    options = pool.connection_kwargs
    return "USER" if options.get("credential_provider") else options.get("username") or "default"


def name_of(command: Command) -> str:
    """Return a command's name, with its subcommand where permissions tell them apart."""
    return " ".join(command[:2]) if command[0] in {"CLIENT", "SCRIPT"} else command[0]


def _rule(command: Command) -> str:
    return f"+{name_of(command).lower().replace(' ', '|')}"
