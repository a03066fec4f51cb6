"""The sweep of what plain consumers left unacknowledged, in place of kombu's own.

Kombu's sweep stops for good when its mutex is left behind, and takes ten messages at a time through
the client. This one has no mutex and leaves the payloads where they are: the server tells the
exchanges and routing keys of what is due, kombu's own rules say which queues these are, and the
server moves the texts.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: ``Channel.keyprefix_queue``, ``sep``,
``typeof`` and ``state``, ``priority_steps``, ``_q_for_pri``, ``deadletter_queue``, an exchange
type's ``lookup``.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from kombu.utils.encoding import bytes_to_str

from celery_lease.core.delivery import Reaped

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

#: Calls for one batch: the first finds out what the routes are, the second uses them. Another one
#: is for what came in between.
CALLS = 3

Routes = dict[str, dict[str, list[str]]]


class PlainSweep:
    """What a sweep has to know of a kombu *channel*, read once."""

    def __init__(self, channel: Any) -> None:
        self.timeout = float(channel.visibility_timeout)
        self._channel = channel
        self._facts = {
            "prefix": channel.global_keyprefix,
            "sep": channel.sep,
            "steps": list(channel.priority_steps),
            "least": channel.min_priority,
            "most": channel.max_priority,
            "usual": channel.default_priority,
        }

    def keys_of(self, queue: str) -> list[str]:
        """Return the keys of a queue's lists, one for each priority, in kombu's order."""
        prefix = self._channel.global_keyprefix
        names = [self._channel._q_for_pri(queue, each) for each in self._facts["steps"]]  # noqa: SLF001
        return [f"{prefix}{name}" for name in names]

    def run(
        self,
        limit: int,
        script: Callable[[list[Any]], Any],
        members: Callable[[str], set[Any]],
    ) -> list[Reaped]:
        """Return up to *limit* messages to their queues.

        Args:
            limit: The most to return.
            script: Runs ``sweep.lua`` with arguments.
            members: Reads a set of the database, by its full key.
        """
        routes: Routes = {}
        swept: list[Reaped] = []
        for _ in range(CALLS):
            facts = json.dumps({**self._facts, "routes": routes})
            done, unrouted = script([limit - len(swept), self.timeout, facts])
            swept += [_reaped(*each) for each in done]
            if not unrouted or len(swept) >= limit:
                break
            for exchange, key in unrouted:
                self._add(routes, bytes_to_str(exchange), bytes_to_str(key), members)
        return swept

    def overdue(self, client: redis.Redis, index: str, claims: str, now: float, limit: int) -> Any:
        """Return tags and seconds of what a sweep would return, and change nothing."""
        due: Any = client.zrangebyscore(
            index, "-inf", now - self.timeout, start=0, num=limit, withscores=True
        )
        tags = [tag for tag, _ in due]
        leased = client.hmget(claims, tags) if tags else []
        return [
            (bytes_to_str(tag), now - self.timeout - score)
            for (tag, score), record in zip(due, leased, strict=True)
            if record is None
        ]

    def _add(
        self, routes: Routes, exchange: str, key: str, members: Callable[[str], set[Any]]
    ) -> None:
        known = routes.setdefault(exchange, {})
        if key not in known:
            known[key] = self._queues(exchange, key, members)

    def _queues(self, exchange: str, key: str, members: Callable[[str], set[Any]]) -> list[str]:
        """Return the queues that kombu's ``Channel._lookup`` finds; it leads through its client."""
        channel, last = self._channel, self._channel.deadletter_queue
        if not exchange:
            return [name for name in [key or last] if name]
        table_key = channel.global_keyprefix + channel.keyprefix_queue % exchange
        table = [tuple(bytes_to_str(each).split(channel.sep)) for each in members(table_key)]
        found = self._match(exchange, key, table)
        return sorted(filter(None, found)) or ([last] if last else [])

    def _match(self, exchange: str, key: str, table: list[tuple[str, ...]]) -> set[str]:
        """Apply the rule of the exchange's type.

        Kombu knows the types of the exchanges that it declared itself, and takes every other one
        for a direct one. The bindings of a topic exchange can be told by their pattern.
        """
        if exchange in self._channel.state.exchanges:
            found: set[str] = self._channel.typeof(exchange).lookup(table, exchange, key, None)
            return found
        return {
            queue
            for bound, pattern, queue in table
            if (re.match(pattern, key) if pattern else bound == key)
        }


def _reaped(tag: bytes, late: bytes, queue: bytes, error: bytes) -> Reaped:
    return Reaped(
        tag=bytes_to_str(tag),
        queue=bytes_to_str(queue),
        late=float(late),
        about={},
        leased=False,
        error=bytes_to_str(error),
    )
