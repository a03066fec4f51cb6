"""Looks into a database for people: what is held, what was lost, where in its queue a message is.

Reads only, in pages, and decides nothing. A message is known by its task's id, which is in its
text, so looking for one reads.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from celery_lease.brokers.redis.attempt import counters
from celery_lease.core.records import Recorded, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import redis

    from celery_lease.brokers.redis.driver import RedisDriver

#: Claims or messages read in one call, and messages of a queue looked at before giving up.
PAGE, DEEPEST = 500, 50_000
#: Of what a claim's tag has behind the publisher's.
NONCE = 13
#: Behind the tag of a message that rests.
RESTS = "~"


class RedisRecords:
    """The records of one database; implements :class:`~.core.records.Records`."""

    def __init__(self, driver: RedisDriver) -> None:
        self._driver = driver

    def leases(self, task_id: str | None = None) -> Iterator[Recorded]:
        """Yield what is held, or what is held of one task."""
        _, _, expiries, claims = self._driver.keys.claims
        cursor = None
        while cursor != 0:
            cursor, found = self._driver.call(_page_of(claims, cursor or 0))
            records = {tag: json.loads(text) for tag, text in found.items()}
            wanted = {
                tag: record
                for tag, record in records.items()
                if task_id is None or record.get("id") == task_id
            }
            yield from self._recorded(expiries, wanted)

    def losses(self, tag: str) -> Sequence[Mapping[str, Any]]:
        """Return the deliveries of a message that were lost."""
        base = tag.removesuffix(RESTS)
        name = base[:-NONCE] if base[-NONCE : -NONCE + 1] == "#" else base
        key = f"{self._driver.keys.unacked}.history.{name}"
        texts: Any = self._driver.call(lambda client: client.lrange(key, 0, -1))
        return [json.loads(text) for text in texts]

    def waiting(self, task_id: str, queues: Sequence[str]) -> Waiting | None:
        """Find a task's message in some queues."""
        needle = json.dumps(task_id).encode()
        for queue in queues:
            ahead = 0
            for key in self._driver.keys_of(queue):
                for text in self._texts(key):
                    if needle in text and (found := _waiting(queue, ahead, task_id, text)):
                        return found
                    ahead += 1
        return None

    def _recorded(self, expiries: str, records: dict[bytes, Any]) -> Iterator[Recorded]:
        if not records:
            return
        clock: Any = self._driver.call(lambda client: client.time())
        now = clock[0] + clock[1] / 1e6
        tags: list[Any] = list(records)
        scores: Any = self._driver.call(lambda client: client.zmscore(expiries, tags))
        for (tag, record), score in zip(records.items(), scores, strict=True):
            # Else it was settled a moment ago, or has only arrived.
            if score is not None and not record.get("arriving"):
                yield Recorded(
                    tag=tag.decode(),
                    task_id=record.get("id", ""),
                    task=record.get("task", ""),
                    queue=record["queue"],
                    worker=record.get("worker", ""),
                    token=record["token"],
                    deliveries=record["deliveries"],
                    losses=record["losses"],
                    since=record["since"],
                    remaining=score - now,
                    resting=record.get("resting", False),
                )

    def _texts(self, key: str) -> Iterator[bytes]:
        """Yield the texts of a list in the order in which they are delivered."""
        for last in range(-1, -DEEPEST, -PAGE):
            page: list[bytes] = self._driver.call(_texts_of(key, last))
            yield from reversed(page)
            if len(page) < PAGE:
                return


def _page_of(key: str, cursor: int) -> Callable[[redis.Redis], Any]:
    return lambda client: client.hscan(key, cursor, count=PAGE)


def _texts_of(key: str, last: int) -> Callable[[redis.Redis], Any]:
    return lambda client: client.lrange(key, last - PAGE + 1, last)


def _waiting(queue: str, ahead: int, task_id: str, text: bytes) -> Waiting | None:
    """Read a message that has the id somewhere; None: it is not the task's own."""
    try:
        payload = json.loads(text)
        headers, properties = payload.get("headers") or {}, payload["properties"]
        if task_id not in (headers.get("id"), properties.get("correlation_id")):
            return None
        deliveries, losses = counters(payload.get("lease"))
        return Waiting(
            queue=queue,
            ahead=ahead,
            tag=str(properties.get("delivery_tag") or ""),
            task=str(headers.get("task") or ""),
            deliveries=deliveries,
            losses=losses,
        )
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
