"""The sweep of unacknowledged messages of plain consumers, in place of kombu's own.

Kombu's sweep stops for good when its mutex is left behind, and moves ten messages at a time through
the client. This one has no mutex and leaves the payloads at the server: the server names exchange
and routing key of a message with an unknown route, kombu's own rules find the queues, and the
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
    from collections.abc import Callable, Iterator, Sequence

#: Messages returned in one call, and routes that are sent with it.
PIECE, ROUTES = 25, 100

Routes = dict[str, dict[str, list[str]]]


class PlainSweep:
    """The facts about a kombu *channel* that a sweep needs, read once."""

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
        tags: Sequence[bytes],
        script: Callable[[list[Any]], Any],
        members: Callable[[str], set[Any]],
    ) -> Iterator[Reaped]:
        """Return messages to their queues, one after the other.

        Args:
            tags: Tags of overdue messages.
            script: Runs ``sweep.lua`` with arguments.
            members: Reads a set of the database, by its full key.
        """
        routes: Routes = {}
        at = 0
        while at < len(tags):
            facts = json.dumps({**self._facts, "routes": routes})
            seen, done, *route = script([self.timeout, facts, *tags[at : at + PIECE]])
            yield from (_reaped(*each) for each in done)
            at += seen
            if route:
                exchange, key = map(bytes_to_str, route[0])
                at += not self._add(routes, exchange, key, members)  # or it is asked for again

    def _add(
        self, routes: Routes, exchange: str, key: str, members: Callable[[str], set[Any]]
    ) -> bool:
        """Look up a route; return whether it is new."""
        if sum(map(len, routes.values())) >= ROUTES:  # each call sends and reads them all
            routes.clear()
        known = routes.setdefault(exchange, {})
        is_new = key not in known
        if is_new:
            known[key] = self._queues(exchange, key, members)
        return is_new

    def _queues(self, exchange: str, key: str, members: Callable[[str], set[Any]]) -> list[str]:
        """Return the queues that kombu's ``Channel._lookup`` finds; that uses kombu's client."""
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
        for a direct one. Here bindings with a pattern show a topic exchange.
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
