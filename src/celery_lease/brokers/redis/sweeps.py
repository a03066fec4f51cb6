"""Sweeps the database: returns expired leases, then overdue plain messages, in order.

The messages that are overdue for longest are returned; at the front of their queue they stand in
the order of their delivery, the oldest in front. So the server first lists the overdue ones, and
then returns them, the newest first, in pieces that each take it a moment. It checks every message
again: any number may sweep at once, and a lease that was extended in between stays.
"""

from __future__ import annotations

import json
import logging
from itertools import count, islice
from operator import methodcaller
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kombu.utils.encoding import bytes_to_str

from celery_lease.brokers import identity
from celery_lease.core.delivery import Reaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import redis

    from celery_lease.brokers.redis.keys import Keys
    from celery_lease.brokers.redis.plain import PlainSweep
    from celery_lease.brokers.redis.server import Server

logger = logging.getLogger(__name__)

#: Messages listed in one call, and messages returned in one call: both are short for the server.
PAGE, PIECE = 500, 25
#: Rounds of one sweep; further rounds are for failed returns, and messages that expired meanwhile.
ROUNDS = 100
#: Seconds that a message may take from its list to its claim. One that takes longer is run
#: elsewhere, and its claim is refused.
ARRIVAL = 5.0
#: How the record of a message begins that waits for an exclusive key: looked after, not returned.
PARKED = b'{"parked": '


class Sweeps:
    """Sweeps one database."""

    def __init__(self, server: Server, keys: Keys) -> None:
        self.worker = ""  #: the identity of the worker that sweeps; "": no worker does
        self._server = server
        self._keys = keys
        self.any_held = True  #: False: the last sweep found that nothing is held, nor parked
        self._is_plain_due = True  # False: the call for leases just before has found none

    def reap(self, limit: int, plain: PlainSweep) -> list[Reaped]:
        """Return expired leases to their queues; then, up to *limit* in all, plain messages.

        Raises:
            OSError: Nothing was returned: there was no answer.
        """
        returned: list[Reaped] = []
        try:
            for each in self.leases(limit, plain):
                returned.append(each)  # noqa: PERF402  (those before a failure are reported)
        except Exception as exc:
            if not returned:
                raise OSError(f"expired leases not returned: {exc}") from exc
            logger.warning("the rest of the expired leases is not returned: %s", exc)
            return returned
        return returned + self.reap_plain(limit - sum(not each.error for each in returned), plain)

    def reap_plain(self, limit: int, plain: PlainSweep) -> list[Reaped]:
        """Return overdue plain messages; a failure is only logged, as leases went back before."""
        returned: list[Reaped] = []
        is_due, self._is_plain_due = self._is_plain_due, True
        if not is_due or limit <= 0:
            return returned
        try:
            for each in self.plain(limit, plain):
                returned.append(each)  # noqa: PERF402  (as above)
        except Exception as exc:  # noqa: BLE001  (any error: the next sweep tries again)
            logger.warning("no sweep for messages without a lease: %s", exc)
        return returned

    def leases(self, limit: int, plain: PlainSweep) -> Iterator[Reaped]:
        """Return up to *limit* expired leases to their queues.

        This also finds out whether plain messages are overdue: a sweep without any is one call.
        """
        return self._rounds(limit, "leases", 0.0, self._return_leases, plain.timeout)

    def plain(self, limit: int, plain: PlainSweep) -> Iterator[Reaped]:
        def reclaim(tags: list[bytes]) -> Iterator[Reaped]:
            return plain.run(tags, self._sweep, self._members)

        return self._rounds(limit, "plain", plain.timeout, reclaim)

    def overdue(self, client: redis.Redis, limit: int, plain: PlainSweep) -> list[Reaped]:
        """Return the messages that a sweep would return, without their queues; change nothing."""
        claims, expired = self._keys.claims[3], []
        late = self._due("leases", 0.0, limit)
        tags = list(late)
        for start in range(0, len(tags), PAGE):
            page = tags[start : start + PAGE]
            records: Any = client.hmget(claims, page)
            expired += [
                reaped(tag, late[tag], record, b"")
                for tag, record in zip(page, records, strict=True)
                if record is not None and not record.startswith(PARKED)
            ]
        overdue = self._due("plain", plain.timeout, limit - len(expired))
        return expired + [
            Reaped(tag=bytes_to_str(tag), queue="", late=seconds, about={}, leased=False)
            for tag, seconds in overdue.items()
        ]

    def _rounds(
        self,
        limit: int,
        what: str,
        seconds: float,
        reclaim: Callable[[list[bytes]], Iterator[Reaped]],
        timeout: float = 0.0,
    ) -> Iterator[Reaped]:
        """Return the due messages; those that failed do not count towards *limit*."""
        for _ in range(ROUNDS):
            due = list(self._due(what, seconds, limit, timeout))
            is_last = len(due) < limit
            for each in reclaim(due[::-1]):
                limit -= not each.error
                yield each
            if is_last or limit <= 0:
                return

    def _due(
        self, what: str, seconds: float, limit: int, timeout: float = 0.0
    ) -> dict[bytes, float]:
        """Return tags and seconds of the messages overdue for longest, in order of delivery."""
        keys, found = [*self._keys.claims, self._keys.refusals], {}
        for start in count(0, PAGE):
            args = [what, seconds, start, PAGE, ARRIVAL, timeout]
            seen, page, is_plain_due, any_held = self._server.run("due", keys, args)
            if what == "leases" and start == 0:
                self._is_plain_due, self.any_held = bool(is_plain_due), bool(any_held)
            for tag, late, since in zip(page[::3], page[1::3], page[2::3], strict=True):
                found[tag] = (int(since), float(late))
            if seen < PAGE or len(found) >= limit:
                break
        chosen = sorted(islice(found, limit), key=lambda tag: (found[tag][0], tag))
        return {tag: found[tag][1] for tag in chosen}

    def _return_leases(self, tags: list[bytes]) -> Iterator[Reaped]:
        keys, done = [*self._keys.claims, self._keys.refusals], 0
        while done < len(tags):
            piece = tags[done : done + PIECE]
            causes = self._causes(piece)
            seen, replies = self._server.run("reap", keys, [json.dumps(causes), *piece])
            done += seen
            for tag, late, record, error in replies:
                yield reaped(tag, late, record, error, causes)

    def _causes(self, tags: list[bytes]) -> dict[str, str]:
        """Return why the holders of leases did not extend them, by worker."""
        ask = methodcaller("hmget", self._keys.claims[3], tags)
        holders = {str(_facts(each).get("worker", "")) for each in self._server.call(ask) if each}
        known = {each: identity.cause_of_expiry(each, self.worker) for each in holders if each}
        return {worker: cause for worker, cause in known.items() if cause}

    def _members(self, key: str) -> Any:
        return self._server.call(lambda client: client.smembers(key))

    def _sweep(self, args: list[Any]) -> Any:
        return self._server.run("sweep", self._keys.claims, args)


def reaped(
    tag: bytes,
    late: float | bytes,
    record: bytes,
    error: bytes,
    causes: Mapping[str, str] = MappingProxyType({}),
) -> Reaped:
    """Parse the record of an expired lease, and add its cause."""
    about = _facts(record)
    if cause := causes.get(str(about.get("worker"))):
        about["cause"] = cause
    return Reaped(
        tag=tag.decode(),
        queue=about.get("queue", ""),
        late=float(late),
        about=about,
        error=error.decode(errors="replace"),
        rested=about.get("resting", False),
        unclaimed=about.get("arriving", False),
    )


def _facts(record: bytes) -> dict[str, Any]:
    """Parse a claim's record; a damaged one, which then has an error, tells nothing."""
    try:
        return dict(json.loads(record))
    except (ValueError, TypeError):
        return {}
