"""Reads the dead-letter queues, and replays or discards dead letters.

A dead letter is found by its task's id, which is in its text, so a search reads the whole queue. A
script moves a letter: it is in exactly one list.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps

from celery_lease.brokers.payloads import body_of
from celery_lease.brokers.redis.delivery import OURS
from celery_lease.core.dead import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery_lease.brokers.redis.driver import RedisDriver

#: Letters read in one call.
PAGE = 100


class RedisDeadLetters:
    """The dead-letter queues of one database; implements :class:`~.core.dead.DeadLetters`."""

    def __init__(self, driver: RedisDriver) -> None:
        self._driver = driver

    def queues(self, likely: Sequence[str] = ()) -> list[str]:
        del likely
        names: Any = self._driver.server.call(
            lambda client: client.smembers(self._driver.keys.dead_letter_queues)
        )
        return sorted(map(bytes_to_str, names))

    def letters(self, queue: str) -> Iterator[DeadLetter]:
        key = self._driver.keys.prefix + queue
        length: Any = self._driver.server.call(lambda client: client.llen(key))
        last = -1
        while page := self._page(key, last):
            for text in reversed(page):
                if letter := _letter(queue, text, is_late=-last > length / 2):
                    yield letter
            last -= len(page)

    def retry(self, letter: DeadLetter) -> bool:
        payload = json.loads(letter.text)
        text = dumps({key: value for key, value in payload.items() if key not in OURS})
        return self._move(letter, letter.key or self._driver.keys.prefix + letter.origin, text)

    def purge(self, letter: DeadLetter) -> bool:
        return self._move(letter, "", "")

    def move(
        self,
        queue: str,
        source: str,
        target: str,
        letter: bytes,
        text: str,
        *,
        is_late: bool = False,
    ) -> bool:
        """Move a letter from a dead-letter queue's key to another, or delete it if *text* is empty.

        *is_late*: it is found sooner if the newest are looked at first.

        Raises:
            redis.RedisError: There was no answer; it may or may not have been done.
        """
        keys = self._driver.keys
        places = [keys.index, keys.unacked, keys.dead_letter_queues, source, target]
        args = [queue, letter, text, 1 if is_late else -1]
        return bool(self._driver.server.run("move_dead_letter", places, args))

    def _page(self, key: str, last: int) -> list[bytes]:
        page: Any = self._driver.server.call(
            lambda client: client.lrange(key, last - PAGE + 1, last)
        )
        return list(page)

    def _move(self, letter: DeadLetter, target: str, text: str) -> bool:
        source = self._driver.keys.prefix + letter.queue
        where = (letter.queue, source, target or source)
        return self.move(*where, letter.text, text, is_late=letter.is_late)


def _correlation(payload: Mapping[str, Any]) -> str:
    return payload["properties"].get("correlation_id") or ""


def _letter(queue: str, text: bytes, *, is_late: bool) -> DeadLetter | None:
    """Parse a text, also that of a message from another program; None: it is none."""
    try:
        payload = json.loads(text)
        dead, headers = payload.get("dead") or {}, payload.get("headers") or {}
        about = dead.get("about") or {}
        delivery = payload["properties"].get("delivery_info") or {}
        return DeadLetter(
            task_id=str(headers.get("id") or about.get("id") or _correlation(payload)),
            task=str(headers.get("task") or about.get("task") or ""),
            queue=queue,
            origin=dead.get("queue") or delivery.get("routing_key") or "",
            key=dead.get("key") or "",
            died_at=dead.get("at"),
            losses=dead.get("losses", 0),
            history=tuple(dead.get("history") or ()),
            headers=headers,
            body=body_of(payload),
            is_late=is_late,
            text=text,
        )
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
