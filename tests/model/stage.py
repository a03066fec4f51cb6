"""A real server, three leasing drivers and a plain kombu channel, all of them under one clock.

The scripts are the real ones but for one word: they ask a key of the database for the time instead
of the server. So time passes when the machine says so, every expiry is known to the microsecond,
and no test waits. Kombu's own clock is set likewise.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

import redis
from kombu import Connection, Producer
from kombu.transport import redis as kombu_redis

from celery_lease.brokers.redis import driver as redis_driver, scripts
from celery_lease.brokers.redis.delivery import Delivery
from celery_lease.brokers.redis.driver import RedisDriver
from celery_lease.brokers.redis.server import Server
from celery_lease.brokers.redis.sweeps import ARRIVAL
from model.lease_model import LISTS, Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKERS = 3
#: Before every key of the database; the machine's is not empty, so that no script forgets it.
PREFIX = "app:"
VISIBILITY_TIMEOUT = 30  # seconds, of the sweep for plain messages
#: The task of every message.
TASK = "t"

#: Everything in the database, in one call. The keys are the queues' lists.
LOOK = """
local prefix = ARGV[1]
local function get(command, key, ...)
  return redis.call(command, prefix .. key, ...)
end
local histories, lists = {}, {}
for _, key in ipairs(get('KEYS', 'unacked.history.*')) do
  histories[#histories + 1] = string.sub(key, #prefix + #'unacked.history.' + 1)
  histories[#histories + 1] = redis.call('LRANGE', key, 0, -1)
end
for i, key in ipairs(KEYS) do
  lists[i] = redis.call('LRANGE', key, 0, -1)
end
local function scores(key)
  return get('ZRANGE', key, 0, -1, 'WITHSCORES')
end
local function foreign()
  local found = {}
  for _, key in ipairs(redis.call('KEYS', '*')) do
    if string.sub(key, 1, #prefix) ~= prefix and key ~= 'clock' then
      found[#found + 1] = key
    end
  end
  return found
end
local held, lines = {}, {}
for kind, found in pairs({holders = held, parked = lines}) do
  for _, key in ipairs(get('KEYS', 'unacked.' .. kind .. '.*')) do
    found[#found + 1] = string.sub(key, #prefix + #('unacked.' .. kind .. '.') + 1)
    found[#found + 1] = redis.call('ZRANGE', key, 0, -1)
  end
end
return {
  lists, scores('unacked_index'), get('HGETALL', 'unacked'),
  scores('unacked.leases'), get('HGETALL', 'unacked.claims'), scores('unacked.refusals'),
  get('LRANGE', 'q.dead', 0, -1), get('SMEMBERS', 'unacked.dead'),
  get('GET', 'unacked.token') or '0', histories, foreign(), held, lines,
  get('HGETALL', 'unacked.parked'),
}
"""

_source = scripts.source


def on_the_clock(text: str) -> str:
    """Let a script read the database's clock in place of the server's."""
    return text.replace("redis.call('TIME')", "redis.call('LRANGE', 'clock', 0, -1)")


class TellingServer(Server):
    """Raises what the server objects to, which a driver only takes for no answer."""

    def run(self, *args: Any, **options: Any) -> Any:
        try:
            return super().run(*args, **options)
        except redis.RedisError as exc:
            raise ScriptError(str(exc)) from exc


class ScriptError(BaseException):
    """A script does not run: that is no finding of the machine, nor any driver's to swallow."""


class Stage:
    """Everything that outlives one example of the machine; :meth:`clear` comes before each."""

    def __init__(
        self,
        url: str,
        change: Callable[[str, str], str] = lambda _, text: text,
        *,
        prefix: str = PREFIX,
    ) -> None:
        """Prepare scripts as *change* returns them, given their name and text."""
        self.now, self.prefix = 0.0, prefix
        self._stack = ExitStack()
        self.client = self._stack.enter_context(redis.Redis.from_url(url, socket_timeout=5))
        options = {"visibility_timeout": VISIBILITY_TIMEOUT, "global_keyprefix": prefix}
        self._connection = self._stack.enter_context(Connection(url, transport_options=options))
        self.channel: Any = self._connection.default_channel
        #: Where the messages of each list of the model are, the one that is read first in front.
        self.keys = {place: self._key(*place) for place in LISTS}
        self._look: Any = self.client.register_script(LOOK)
        self._producer = Producer(self.channel, auto_declare=False)
        changed = mock.patch.object(
            scripts, "source", lambda name: on_the_clock(change(name, _source(name)))
        )
        telling = mock.patch.object(redis_driver, "Server", TellingServer)
        with changed, telling:
            self.drivers = [RedisDriver(self.channel) for _ in range(WORKERS)]
        for driver in self.drivers:
            self._stack.callback(driver.close)
        self._stack.enter_context(mock.patch.object(kombu_redis, "time", self.time))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear(0.0)
        self._stack.close()

    def clear(self, now: float) -> None:
        """Empty the database and forget what the plain consumer has taken."""
        self.client.flushdb()
        self.channel.qos._delivered.clear()
        self.channel.qos._dirty.clear()
        self.set_clock(now)

    def time(self) -> float:
        """Return what both kombu and the scripts take for the time."""
        return self.now

    def set_clock(self, now: float) -> None:
        self.now = now
        pipe = self.client.pipeline()
        pipe.delete("clock")
        pipe.rpush("clock", int(now), round(now % 1 * 1e6))
        pipe.execute()

    def _key(self, queue: str, priority: int) -> str:
        return f"{self.prefix}{self.channel._q_for_pri(queue, priority)}"

    def publish(
        self, message: str, queue: str = "q", priority: int = 0, key: str | None = None
    ) -> None:
        with mock.patch.object(self.channel, "_next_delivery_tag", return_value=message):
            headers = {"task": TASK, "id": message, **({"lease_key": key} if key else {})}
            where = {"exchange": "", "routing_key": queue, "priority": priority}
            self._producer.publish(message, headers=headers, **where)

    def arrive(self, nonce: int) -> tuple[Delivery, str] | None:
        """Take the next message as a consumer that waits; also return what kombu would record."""
        arrival = f"arrival#{nonce}"
        reply = self.take(arrival)
        if reply is None:
            return None
        key, text = reply
        queue = next(queue for (queue, _), each in self.keys.items() if each == key)
        return self.delivery(text, nonce, key, arrival), f'[{text}, "", "{queue}"]'

    def take(self, tag: str, *claims: Any) -> list[str] | None:
        """Return what the script says that takes the next message, and perhaps claims it."""
        lists = {key: queue for (queue, _), key in self.keys.items()}
        command = self.drivers[0].arrive(tag, ARRIVAL, lists, by_name=False, claims=claims)
        try:
            reply: Any = self.client.execute_command(*command)
        except redis.RedisError as exc:
            raise ScriptError(str(exc)) from exc
        return None if reply is None else list(map(bytes.decode, reply))

    def is_new(self, place: tuple[str, int]) -> bool:
        """Whether nobody has taken the next message of a list under a lease, or parked it."""
        text: Any = self.client.lindex(self.keys[place], -1)
        return "lease" not in json.loads(text)

    def fetch(self, nonce: int, place: tuple[str, int]) -> Delivery:
        """Take the next message of a list as kombu does that is asked for one."""
        text: Any = self.client.rpop(self.keys[place])
        return self.delivery(text, nonce, self.keys[place], "")

    def delivery(self, text: str | bytes, nonce: int, key: str, arrival: str) -> Delivery:
        message = self.channel.Message(json.loads(text), channel=self.channel)
        queue = next(queue for (queue, _), each in self.keys.items() if each == key)
        delivery = Delivery.of(message, queue, key, arrival)
        return replace(delivery, tag=f"{message.delivery_tag}#{nonce:012d}")

    def take_plainly(self, queue: str = "q") -> str:
        return str(self.channel.basic_get(queue).delivery_tag)

    def settle_plainly(self, tag: str, *, ack: bool, requeue: bool) -> None:
        if ack:
            self.channel.basic_ack(tag)
        else:
            self.channel.basic_reject(tag, requeue=requeue)

    def kombu_sweep(self, timeout: float) -> None:
        self.channel.qos.visibility_timeout = timeout
        self.channel.qos.restore_visible(interval=1)

    def view(self) -> dict[str, Any]:
        """Return all that the server holds of messages, in one call."""
        keys, prefix = list(self.keys.values()), [self.prefix]
        lists, index, held, leases, claims, refusals, *more = self._look(keys=keys, args=prefix)
        dead, names, token, histories, foreign, holders, lines, parked = more
        return {
            "queues": {
                place: [_text(json.loads(each)) for each in texts]
                for place, texts in zip(self.keys, lists, strict=True)
            },
            "index": _scores(index),
            "held": {tag: _text(json.loads(each)[0]) for tag, each in _pairs(held)},
            "leases": _scores(leases),
            "records": {tag: _record(json.loads(each)) for tag, each in _pairs(claims)},
            "refusals": _scores(refusals),
            "dead": [_text(json.loads(each)) for each in dead],
            "dead_letter_queues": {name.decode() for name in names},
            "token": int(token or 0),
            "foreign": [key for key in foreign if not key.startswith(b"_kombu")],
            "holders": {key: set(map(bytes.decode, tags)) for key, tags in _pairs(holders)},
            "lines": {
                key: {tuple(each.decode().split(" ")) for each in line}
                for key, line in _pairs(lines)
            },
            "parked": {queue: int(count) for queue, count in _pairs(parked)},
            "history": {name: list(map(_reason, losses)) for name, losses in _pairs(histories)},
        }


def _pairs(flat: list[Any]) -> Iterator[tuple[str, Any]]:
    return zip(map(bytes.decode, flat[::2]), flat[1::2], strict=True)


def _scores(flat: list[bytes]) -> dict[str, float]:
    return {tag: float(score) for tag, score in _pairs(flat)}


def _reason(loss: bytes) -> str:
    return str(json.loads(loss)["reason"])


def _text(payload: dict[str, Any]) -> Text:
    deliveries, losses = payload.get("lease", "0:0").split(":")
    line = (payload.get("place", ""), payload.get("replaced", ""))
    return Text(payload["properties"]["delivery_tag"], int(deliveries), int(losses), *line)


def _record(claim: dict[str, Any]) -> tuple[int | bool | str, ...]:
    numbers = [claim.get(each, 0) for each in ("token", "deliveries", "losses")]
    flags = [claim.get(each, False) for each in ("resting", "arriving", "waits")]
    return (*numbers, *flags, claim.get("parked", ""), claim.get("holds", False))
