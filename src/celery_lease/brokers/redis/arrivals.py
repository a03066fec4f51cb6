"""What a channel pops from its lists: from where, and what is no message at all.

Kombu does not tell which list a message came from, and a topic exchange may have put the same one
into several. And it loses what it cannot read: the error ends the worker, the text is gone. Here
such a text is put into a list of its own, named after its queue, and the worker goes on.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: ``Channel._brpop_read`` and ``handlers``, that
the former asks ``client.parse_response`` for what was popped, and that :class:`queue.Empty` from it
means "nothing was received".
"""

from __future__ import annotations

import logging
from queue import Empty
from typing import TYPE_CHECKING, Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from redis.exceptions import ConnectionError, ResponseError  # noqa: A004

from celery_lease.brokers.redis.refusals import will_pass

if TYPE_CHECKING:
    from celery_lease.brokers.redis.driver import RedisDriver

logger = logging.getLogger(__name__)

#: Name of the list for unreadable texts, after that of the list they came from.
SUFFIX = ".malformed"


class Arrivals:
    """Watches one channel. Touched by the consuming thread only."""

    def __init__(self, channel: Any, driver: RedisDriver) -> None:
        self._channel = channel
        self._driver = driver
        self._popped: tuple[bytes, bytes] | None = None  # list and text of what arrives now
        self._queue: str | None = None  # of what is fetched now
        self._parse, self._read, self._get = (
            channel.client.parse_response,
            channel._brpop_read,  # noqa: SLF001
            channel.basic_get,
        )
        channel.client.parse_response = self._parse_response
        channel._brpop_read = channel.handlers["BRPOP"] = self._brpop_read  # noqa: SLF001
        channel.basic_get = self._basic_get

    def origin(self, message: Any) -> tuple[str, str]:
        """Return the queue and the full key of the list that the message at hand was in."""
        channel = self._channel
        if self._popped is not None:
            key = bytes_to_str(self._popped[0])
            return key.rsplit(channel.sep, 1)[0], channel.global_keyprefix + key
        queue = self._queue or message.delivery_info.get("routing_key") or ""
        priority = channel._get_message_priority(message._raw, reverse=False)  # noqa: SLF001
        return queue, channel.global_keyprefix + channel._q_for_pri(queue, priority)  # noqa: SLF001

    def recorded(self) -> None:
        """Forget the text at hand: the broker keeps it now."""
        self._popped = None

    def _parse_response(self, connection: Any, command_name: str, **options: Any) -> Any:
        try:
            reply = self._parse(connection, command_name, **options)
        except ResponseError as exc:
            if command_name != "BRPOP" or not will_pass(exc):
                raise
            # For Celery an unknown error is the end of the worker, a lost connection is not.
            raise ConnectionError(f"no message: {exc}") from exc
        if command_name == "BRPOP":
            self._popped = reply
        return reply

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return self._read(**options)
        except Empty:
            raise
        except Exception:
            if self._popped is None or self._is_readable(self._popped[1]):
                raise
            self._set_aside(*self._popped)
            raise Empty from None
        finally:
            self._popped = None

    def _basic_get(self, queue: str, *args: Any, **options: Any) -> Any:
        self._queue = queue
        try:
            return self._get(queue, *args, **options)
        finally:
            self._queue = None

    def _is_readable(self, text: bytes) -> bool:
        """Whether kombu can make a message of *text* and keep a record of it."""
        try:
            message = self._channel.Message(loads(bytes_to_str(text)), channel=self._channel)
            message.delivery_info["exchange"], message.delivery_info["routing_key"]
        except Exception:  # noqa: BLE001  (a foreign text may break kombu anywhere)
            return False
        return True

    def _set_aside(self, key: bytes, text: bytes) -> None:
        name = f"{self._channel.global_keyprefix}{bytes_to_str(key)}{SUFFIX}"
        try:
            self._driver.set_aside(name, text)
        except OSError as exc:
            # The log is the only place left.
            logger.critical("unreadable text of %r not set aside: %s: %r", key, exc, text)
        else:
            logger.error("no message: text of %d bytes from %r moved to %r", len(text), key, name)
