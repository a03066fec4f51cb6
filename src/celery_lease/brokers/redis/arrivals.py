"""How a channel gets its messages: so that none is ever in the hands of one process alone.

Kombu waits with ``BRPOP``: the server takes a message out of its list and sends it, also to a
worker that was killed a moment ago, or stopped, or cut off, and the message is gone. Here a script
takes it and records where it is, in one step; what nobody claims within :data:`ARRIVAL` goes back.
A script cannot wait. So the server is first asked to wait, for as long as :class:`Pause` says, at
a list that others ring like a bell; both commands are sent at once, and kombu, which waits for the
socket to become readable, sees no difference.

Kombu does not tell either which list a message came from, and a topic exchange may have put the
same one into several. And it loses what it cannot read: the error ends the worker, the text is
gone. Here such a text is put into a list of its own, named after its queue, and the worker goes on.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: ``Channel._brpop_start``, ``_brpop_read`` and
``handlers``, ``_in_poll``, ``_brpop_sent_at``, ``_queue_cycle`` and ``_q_for_pri``; that
``_brpop_read`` asks ``client.parse_response`` for what was popped, and that :class:`queue.Empty`
from it means "nothing was received".
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from queue import Empty
from time import monotonic  # noqa: TID251  (kombu compares with it)
from typing import TYPE_CHECKING, Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from redis.exceptions import (
    ConnectionError,  # noqa: A004
    NoScriptError,
    ResponseError,
)

from celery_lease.brokers.redis.refusals import will_pass

if TYPE_CHECKING:
    from celery_lease.brokers.redis.driver import RedisDriver

logger = logging.getLogger(__name__)

#: Seconds that a message may be on its way from its list to its claim. One that takes longer is run
#: elsewhere, and its claim refused.
ARRIVAL = 5.0
#: Shortest and longest pause between two looks at empty lists, in seconds.
SHORTEST, LONGEST = 0.004, 0.05
#: What an error begins with that says of a queue's key that it is something else.
WRONG_KEY = "WRONGTYPE key "
#: Name of the list for unreadable texts, after that of the list they came from.
SUFFIX = ".malformed"


@dataclass(slots=True)
class Pause:
    """How long to leave empty lists alone: longer each time, from the last message on.

    A busy queue is never waited for; an idle worker asks at most 20 times a second. A server that
    has nothing else to do ends a pause at the next tick of its clock, of 100 ms by default.
    """

    seconds: float = 0.0

    def found(self, *, message: bool) -> None:
        """Go by whether there was a message."""
        self.seconds = 0.0 if message else min(max(2 * self.seconds, SHORTEST), LONGEST)


def check_tag(tag: object) -> None:
    """Make sure that a publisher's delivery tag can be a name at the server.

    Raises:
        ValueError, TypeError: It cannot.
    """
    if isinstance(tag, bool) or not isinstance(tag, str | int):
        raise TypeError(f"delivery tag {tag!r} is no text")
    str(tag).encode()


class Arrivals:
    """Feeds and watches one channel. Touched by the consuming thread only."""

    def __init__(self, channel: Any, driver: RedisDriver) -> None:
        self._channel = channel
        self._driver = driver
        self._popped: tuple[bytes, bytes] | None = None  # list and text of what arrives now
        self._queue: str | None = None  # of what is fetched now
        self._tag = ""  # of what arrives now, or will
        self._pause = Pause()
        self._paused = False  # by the request under way
        self._known = False  # to the server: the script
        self._told: set[str] = set()  # errors that the log has
        self._parse, self._read, self._get = (
            channel.client.parse_response,
            channel._brpop_read,  # noqa: SLF001
            channel.basic_get,
        )
        channel.client.parse_response = self._parse_response
        channel._brpop_start = self._brpop_start  # noqa: SLF001
        channel._brpop_read = channel.handlers["BRPOP"] = self._brpop_read  # noqa: SLF001
        channel.basic_get = self._basic_get

    @property
    def tag(self) -> str:
        """Tag of the record that keeps the message at hand; empty if it was fetched directly."""
        return "" if self._popped is None else self._tag

    @property
    def is_broadcast(self) -> bool:
        """Whether the message at hand came out of no list, but by publish and subscribe."""
        return self._popped is None and self._queue is None

    def origin(self, message: Any) -> tuple[str, str, str]:
        """Return the queue of the message at hand, the full key of its list, and its tag."""
        channel = self._channel
        if self._popped is not None:
            key = bytes_to_str(self._popped[0])
            return key.rsplit(channel.sep, 1)[0], channel.global_keyprefix + key, self._tag
        queue = self._queue or ""
        priority = channel._get_message_priority(message._raw, reverse=False)  # noqa: SLF001
        return queue, channel.global_keyprefix + channel._q_for_pri(queue, priority), ""  # noqa: SLF001

    def recorded(self) -> None:
        """Forget the text at hand: the broker keeps it under another name now."""
        self._popped = None

    def _brpop_start(self, timeout: float | None = None) -> None:  # noqa: ARG002  (kombu's)
        channel = self._channel
        queues = channel._queue_cycle.consume(len(channel.active_queues))  # noqa: SLF001
        if not queues:
            return
        lists = {
            channel.global_keyprefix + channel._q_for_pri(queue, step): queue  # noqa: SLF001
            for step in channel.priority_steps
            for queue in queues
        }
        self._tag = f"arrival#{uuid.uuid4().hex}"
        commands = [self._driver.arrive(self._tag, ARRIVAL, lists, by_name=self._known)]
        self._paused = self._pause.seconds > 0
        if self._paused:
            commands.insert(0, ("BLPOP", self._driver.keys.bell, self._pause.seconds))
        connection = channel.client.connection
        channel._in_poll, channel._brpop_sent_at = connection, monotonic()  # noqa: SLF001
        connection.send_packed_command(connection.pack_commands(commands))

    def _parse_response(self, connection: Any, command_name: str, **options: Any) -> Any:
        if command_name != "BRPOP":
            return self._parse(connection, command_name, **options)
        try:
            self._popped = self._parse_arrival(connection, **options)
        except ResponseError as exc:
            if not will_pass(exc):
                raise
            # For Celery an unknown error is the end of the worker, a lost connection is not.
            raise ConnectionError(f"no message: {exc}") from exc
        self._pause.found(message=self._popped is not None)
        return self._popped

    def _parse_arrival(self, connection: Any, **options: Any) -> Any:
        if self._paused:
            self._parse(connection, "BLPOP", **options)
        try:
            reply = self._parse(connection, "BRPOP", **options)
        except NoScriptError:
            self._known = False
            return None
        except ResponseError as exc:
            if not str(exc).startswith(WRONG_KEY):
                raise
            self._tell_once(str(exc))
            return None
        self._known = True
        return reply

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            logger.error("no messages from one queue, the others go on: %s", text)

    def _brpop_read(self, **options: Any) -> Any:
        try:
            received = self._read(**options)
        except Empty:
            raise
        except Exception:
            if self._popped is None or self._is_readable(self._popped[1]):
                raise
            self._set_aside(*self._popped)
            raise Empty from None
        else:
            if self._popped is not None:  # by a consumer that acknowledges nothing
                self._driver.complete([self._tag])
            return received
        finally:
            self._popped = None

    def _basic_get(self, queue: str, *args: Any, **options: Any) -> Any:
        self._queue = queue
        try:
            return self._get(queue, *args, **options)
        finally:
            self._queue = None

    def _is_readable(self, text: bytes) -> bool:
        """Whether kombu can make a message of *text*, and the server keep a record of it."""
        try:
            message = self._channel.Message(loads(bytes_to_str(text)), channel=self._channel)
            message.delivery_info["exchange"], message.delivery_info["routing_key"]
            check_tag(message.delivery_tag)
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
            self._driver.complete([self._tag])
            logger.error("no message: text of %d bytes from %r moved to %r", len(text), key, name)
