"""Receives a channel's messages, so that none ever exists in the memory of one process alone.

Kombu waits with ``BRPOP``: the server takes a message out of its list and sends it, also to a
worker that was just killed, stopped, or cut off, and the message is gone. Here a script takes the
message and records its place in one step; without a claim within :data:`ARRIVAL` it goes back. A
script cannot wait. So the server notifies an idle channel of messages (:mod:`.waiting`); where it
does not, the channel polls (:mod:`.polling`). Kombu, which waits for a socket to become readable,
sees no difference.

Kombu does not keep a message's list either, and a topic exchange may have put the same message into
several. And a text that kombu cannot read is lost there: the error ends the worker. Here such a
text is moved to a list of its own, named after its queue, and the worker goes on.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: ``Channel._brpop_start``, ``_brpop_read`` and
``handlers``, ``_in_poll``, ``_brpop_sent_at``, ``_queue_cycle`` and ``_q_for_pri``; that
``_brpop_start`` is called before each wait while ``_in_poll`` is false, whether or not it sent
anything; that ``_brpop_read`` reads the reply by ``client.parse_response``, and that
:class:`queue.Empty` from it means "nothing was received".
"""

from __future__ import annotations

import logging
from queue import Empty
from time import monotonic  # noqa: TID251  (kombu compares with it)
from typing import TYPE_CHECKING, Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from redis.exceptions import ConnectionError, ResponseError  # noqa: A004

from celery_lease.brokers.redis.arrivals import Arrived
from celery_lease.brokers.redis.delivery import priority_of
from celery_lease.brokers.redis.looking import Looks
from celery_lease.brokers.redis.polling import Polling
from celery_lease.brokers.redis.refusals import will_pass
from celery_lease.brokers.redis.standing import Standing
from celery_lease.brokers.redis.watch import Refused
from celery_lease.core.delivery import Answer
from celery_lease.core.words import counted

if TYPE_CHECKING:
    from celery_lease.brokers.redis.driver import RedisDriver
    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Claim, Terms

logger = logging.getLogger(__name__)

#: Name of the list for unreadable texts, after that of the list they came from.
SUFFIX = ".malformed"
#: Seconds of polling after a temporary failure of notifications.
AGAIN = 60.0


def check_tag(tag: object) -> None:
    """Check that a publisher's delivery tag can be part of a name at the server.

    Raises:
        ValueError, TypeError: It cannot.
    """
    if isinstance(tag, bool) or not isinstance(tag, str | int):
        raise TypeError(f"delivery tag {tag!r} is no text")
    str(tag).encode()


class Receiver:
    """Receives the messages of one channel. Touched by the consuming thread only."""

    def __init__(self, channel: Any, driver: RedisDriver, clock: Clock) -> None:
        self._channel = channel
        self._driver = driver
        self._popped: tuple[bytes, bytes] | None = None  # list and text of the message at hand
        self._queue: str | None = None  # queue of the message that basic_get fetches
        self._looks = Looks(channel, driver, clock)
        self._polling = Polling(self._looks, driver.keys.bell)
        self._standing = Standing(channel, driver, self._looks, self._on_change)
        self._polls_until = 0.0  # monotonic
        self._manner: Polling | Standing = self._standing  # of the request under way
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
        """Tag of the record that keeps the message at hand; "" if basic_get fetched it."""
        return "" if self._popped is None else self._looks.tag

    @property
    def polls(self) -> bool:
        """Whether this channel polls, as the server does not notify it of messages."""
        return monotonic() < self._polls_until

    @property
    def is_waiting(self) -> bool:
        return bool(self._channel._in_poll) and self._manner.is_waiting  # noqa: SLF001

    @property
    def is_broadcast(self) -> bool:
        """Whether the message at hand came by publish and subscribe, and not from a list."""
        return self._popped is None and self._queue is None

    def origin(self, message: Any) -> tuple[str, str, str]:
        """Return the queue of the message at hand, the full key of its list, and its tag."""
        channel = self._channel
        if self._popped is not None:
            key = bytes_to_str(self._popped[0])
            return key.rsplit(channel.sep, 1)[0], channel.global_keyprefix + key, self.tag
        queue = self._queue or ""
        priority = channel._get_message_priority(message._raw, reverse=False)  # noqa: SLF001
        return queue, channel.global_keyprefix + channel._q_for_pri(queue, priority), ""  # noqa: SLF001

    def claim(self, message: Any, terms: Terms) -> Claim | None:
        """Return the claim made when the message at hand arrived; None: it is to be made."""
        if not self.tag:
            return None
        queue, _, tag = self.origin(message)
        priority = priority_of(message._raw)  # noqa: SLF001
        return self._looks.claims.claim(tag, queue, message.delivery_tag, priority, terms)

    def learn(self, terms: Terms) -> None:
        """Have messages of the same task claimed when they arrive."""
        self._looks.claims.learn(terms)

    def learn_plain(self, task: str) -> None:
        """Have messages of a task without leases recorded as plain ones when they arrive."""
        self._looks.claims.learn_plain(task)

    @property
    def is_plain(self) -> bool:
        """Whether the message at hand was recorded as a plain one when it arrived."""
        return self._looks.claims.is_plain

    def return_it(self, message: Any) -> None:
        """Return the message at hand, as it came, to the front of its list."""
        _, key, tag = self.origin(message)
        arrived = Arrived(tag, key, self._popped[1] if self._popped else b"")
        if Answer.UNKNOWN in self._driver.return_unclaimed([arrived]):
            self._channel.lease_holder.unclaimed(arrived)

    def return_unheard(self) -> None:
        """Return a message that was perhaps claimed for a request without an answer."""
        if (unheard := self._looks.claims.unheard(self._looks.tag)) is not None:
            self._channel.lease_holder.unclaimed(unheard)

    def recorded(self) -> None:
        """Forget the message at hand: the broker has recorded it under another name."""
        self._popped = None

    def hurry(self) -> None:
        """End the wait at the server of the request under way, so that its reply comes at once."""
        if self._channel._in_poll:  # noqa: SLF001
            self._standing.end_wait()

    def step_back(self) -> None:
        """Pass on the queues that this channel watches: it takes no messages now."""
        if not self._channel._in_poll:  # noqa: SLF001
            self._standing.leave()

    def change_queues(self) -> None:
        """Read the channel's present queues from now on."""
        self._standing.leave(self._channel.active_queues)
        self.hurry()

    def close(self) -> None:
        """Pass on the queues that this channel watches, before it is closed.

        After a lost connection nothing is sent: the next channel that looks watches them.
        """
        client = self._channel.__dict__.get("client")
        if getattr(getattr(client, "connection", None), "_sock", None) is not None:
            self.hurry()
            self._standing.leave()
        self._standing.close()

    def _brpop_start(self, timeout: float | None = None) -> None:  # noqa: ARG002  (kombu's)
        channel = self._channel
        queues = channel._queue_cycle.consume(len(channel.active_queues))  # noqa: SLF001
        if not queues:
            return
        self.return_unheard()  # the former connection has ended
        commands, seconds = self._request(queues)
        if not commands:
            return
        connection = channel.client.connection
        channel._in_poll = connection  # noqa: SLF001
        channel._brpop_sent_at = monotonic() + seconds  # noqa: SLF001  (kombu waits a second more)
        connection.send_packed_command(connection.pack_commands(commands))

    def _request(self, queues: list[str]) -> tuple[list[tuple[Any, ...]], float]:
        now = monotonic()
        if now >= self._polls_until:
            self._manner = self._standing
            try:
                return self._standing.ask(queues, now)
            except Refused as refused:
                self._begin_to_poll(refused, now)
        self._manner = self._polling
        return self._polling.ask(queues)

    def _begin_to_poll(self, refused: Refused, now: float) -> None:
        if self._polls_until == 0.0:
            logger.info(
                "this worker polls its queues up to 20 times a second while it is idle, "
                "as the server does not notify it of messages: %s",
                refused,
            )
        self._polls_until = now + AGAIN if not refused.for_good else float("inf")
        self._standing.leave()

    def _on_change(self) -> None:
        """Read the queues at once: the server has notified the watch connection of a change."""
        channel = self._channel
        if self.is_waiting:
            self._standing.end_wait()
        elif not channel._in_poll and channel.qos.can_consume():  # noqa: SLF001
            connection = channel.client.connection
            if connection is not None and connection._sock is not None:  # noqa: SLF001
                self._brpop_start()

    def _parse_response(self, connection: Any, command_name: str, **options: Any) -> Any:
        if command_name != "BRPOP":
            return self._parse(connection, command_name, **options)
        if not self._channel._in_poll:  # noqa: SLF001
            connection.can_read(0)  # raises if it has ended; else the next reply follows
            self._standing.hint()
            return None
        try:
            self._popped = self._manner.answer(
                lambda name: self._parse(connection, name, **options), monotonic()
            )
        except ResponseError as exc:
            if not will_pass(exc):
                raise
            # Celery ends the worker at an unknown error, but not at a lost connection.
            raise ConnectionError(f"no message: {exc}") from exc
        return self._popped

    def _brpop_read(self, **options: Any) -> Any:
        try:
            received = self._read(**options)
        except Empty:
            raise
        except Exception:
            if self._popped is None or self._is_readable(self._popped[1]):
                raise
            self._store_unreadable(*self._popped)
            raise Empty from None
        else:
            if self._popped is not None:  # its consumer is no_ack
                self._driver.complete([self.tag])
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
        """Whether kombu can decode *text* as a message, and the server can record it."""
        try:
            message = self._channel.Message(loads(bytes_to_str(text)), channel=self._channel)
            message.delivery_info["exchange"], message.delivery_info["routing_key"]
            check_tag(message.delivery_tag)
        except Exception:  # noqa: BLE001  (a foreign text may break kombu anywhere)
            return False
        return True

    def _store_unreadable(self, key: bytes, text: bytes) -> None:
        name = f"{self._channel.global_keyprefix}{bytes_to_str(key)}{SUFFIX}"
        try:
            self._driver.store_unreadable(name, text)
        except OSError as exc:
            # The log is the only place left.
            logger.critical("unreadable text of %r could not be moved: %s: %r", key, exc, text)
        else:
            self._driver.complete([self.tag])
            size = counted(len(text), "byte")
            logger.error("no message: text of %s from %r moved to %r", size, key, name)
