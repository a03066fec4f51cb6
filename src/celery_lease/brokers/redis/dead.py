"""What lies in dead-letter queues, for people: to look at, to send back, to throw away.

A dead letter is found by its task's id, which is in its text, so looking for one reads the queue.
Moving one is a script: it is in one list or in the other.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps

from celery_lease.brokers.payloads import body_of
from celery_lease.brokers.redis.attempt import OURS
from celery_lease.core.dead import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_lease.brokers.redis.driver import RedisDriver

#: Letters read in one call.
PAGE = 100


class RedisDeadLetters:
    """The dead-letter queues of one database; implements :class:`~.core.dead.DeadLetters`."""

    def __init__(self, driver: RedisDriver) -> None:
        self._driver = driver

    def queues(self, likely: Sequence[str] = ()) -> list[str]:
        """Return the names of the queues that hold something."""
        del likely
        names: Any = self._driver.call(lambda client: client.smembers(self._driver.keys.graveyards))
        return sorted(map(bytes_to_str, names))

    def letters(self, queue: str) -> Iterator[DeadLetter]:
        """Yield what lies in a *queue*, the oldest first; what is no message is passed over."""
        key = self._driver.keys.prefix + queue
        last = -1
        while page := self._page(key, last):
            for text in reversed(page):
                if letter := _letter(queue, text):
                    yield letter
            last -= len(page)

    def retry(self, letter: DeadLetter) -> bool:
        """Send a letter back to the queue it came from; False: it is not there any more."""
        payload = json.loads(letter.text)
        text = dumps({key: value for key, value in payload.items() if key not in OURS})
        return self._move(letter, letter.key or self._driver.keys.prefix + letter.origin, text)

    def purge(self, letter: DeadLetter) -> bool:
        """Throw a letter away; False: it is not there any more."""
        return self._move(letter, "", "")

    def _page(self, key: str, last: int) -> list[bytes]:
        page: Any = self._driver.call(lambda client: client.lrange(key, last - PAGE + 1, last))
        return list(page)

    def _move(self, letter: DeadLetter, target: str, text: str) -> bool:
        source = self._driver.keys.prefix + letter.queue
        return self._driver.exhume(letter.queue, source, target or source, letter.text, text)


def _letter(queue: str, text: bytes) -> DeadLetter | None:
    """Read a text; also of a message that something else put into the queue."""
    try:
        payload = json.loads(text)
        dead, headers = payload.get("dead") or {}, payload.get("headers") or {}
        delivery = payload["properties"].get("delivery_info") or {}
        return DeadLetter(
            task_id=str(headers.get("id") or payload["properties"].get("correlation_id") or ""),
            task=str(headers.get("task") or ""),
            queue=queue,
            origin=dead.get("queue") or delivery.get("routing_key") or "",
            key=dead.get("key") or "",
            died_at=dead.get("at"),
            losses=dead.get("losses", 0),
            history=tuple(dead.get("history") or ()),
            headers=headers,
            body=body_of(payload),
            text=text,
        )
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
