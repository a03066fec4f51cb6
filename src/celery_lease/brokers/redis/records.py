"""Reads the database for commands: held messages, losses, and the place of a message in its queue.

It only reads, in pages, and decides nothing. A message is found by its task's id, which is in its
text, so a search reads the queue.
"""

from __future__ import annotations

import json
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from celery_lease.brokers.redis.delivery import counters
from celery_lease.core.records import Recorded, Waiting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery_lease.brokers.redis.driver import RedisDriver

#: Claims read in one call, messages likewise, and the most messages of a queue that a search reads.
PAGE, TEXTS, DEEPEST = 250, 100, 50_000
#: Length of the suffix that a claim's tag has after the publisher's.
NONCE = 13
#: Suffix of the tag of a message in a backoff, or parked.
RESTS = "~"


class RedisRecords:
    """The records of one database; implements :class:`~.core.records.Records`."""

    def __init__(self, driver: RedisDriver) -> None:
        self._driver = driver

    def leases(self, task_id: str | None = None) -> Iterator[Recorded]:
        for page in pages(self._driver, "held", task_id):
            yield from self._recorded(self._driver.keys.claims[2], page)

    def losses(self, tag: str) -> Sequence[Mapping[str, Any]]:
        base = tag.removesuffix(RESTS)
        name = base[:-NONCE] if base[-NONCE : -NONCE + 1] == "#" else base
        key = f"{self._driver.keys.unacked}.history.{name}"
        texts: Any = self._driver.server.call(lambda client: client.lrange(key, 0, -1))
        return [json.loads(text) for text in texts]

    def waiting(self, task_id: str, queues: Sequence[str]) -> Waiting | None:
        needle = json.dumps(task_id).encode()
        for queue in queues:
            ahead = 0
            for key in self._driver.keys_of(queue):
                for text in self._texts(key):
                    if needle in text and (found := _waiting(queue, ahead, task_id, text)):
                        return found
                    ahead += 1
        return None

    def _recorded(self, expiries: str, records: Mapping[bytes, Any]) -> Iterator[Recorded]:
        if not records:
            return
        clock: Any = self._driver.server.call(lambda client: client.time())
        now = clock[0] + clock[1] / 1e6
        tags: list[Any] = list(records)
        scores: Any = self._driver.server.call(lambda client: client.zmscore(expiries, tags))
        for (tag, record), score in zip(records.items(), scores, strict=True):
            # Otherwise it was settled a moment ago, or is not claimed yet.
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
        """Yield the texts of a list in the order of their delivery."""
        for last in range(-1, -DEEPEST, -TEXTS):
            ask = methodcaller("lrange", key, last - TEXTS + 1, last)
            page: list[bytes] = self._driver.server.call(ask)
            yield from reversed(page)
            if len(page) < TEXTS:
                return


def pages(
    driver: RedisDriver, which: str, task_id: str | None = None
) -> Iterator[Mapping[bytes, Any]]:
    """Yield the records of ``held`` or of ``parked`` messages, by tag.

    The server selects them: those of one task, or all that are held, or of parked ones at least one
    for each key.
    """
    text = "" if task_id is None else f'"id": {json.dumps(task_id, ensure_ascii=False)}'
    where: Any = None
    while where != b"0":
        args = [where or b"0", PAGE, which, text.encode(errors="replace")]
        where, found = driver.server.run("list", driver.keys.claims[3:], args)
        records = {tag: json.loads(each) for tag, each in zip(found[::2], found[1::2], strict=True)}
        yield {
            tag: record
            for tag, record in records.items()
            if task_id is None or record.get("id") == task_id
        }


def _waiting(queue: str, ahead: int, task_id: str, text: bytes) -> Waiting | None:
    """Parse a message that contains the id somewhere; None: it is not the task's own."""
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
