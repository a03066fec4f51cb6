"""The connection on which a server notifies a channel that lists have changed.

It is set up once for a channel and tested: a key is changed, and the notification must come. If it
does not, or a command is refused, as by a proxy or for a user without the right, the channel polls.

After ``CLIENT TRACKING`` on the channel's connection the server sends notifications for it to this
one: with ``OPTIN`` only for the keys of an ``EXISTS`` after ``CLIENT CACHING``, once for each key;
with ``NOLOOP`` not for the channel's own changes. In RESP2, the protocol that all versions of the
client library read alike, notifications are messages to a subscriber.

Kombu's poller, with or without an event loop, waits for this connection, too: a :class:`Watch` has
the members that the poller uses of a channel. Uses of kombu internals, as read in 5.5.4 and 5.7.0:
``MultiChannelPoller._register``, ``_fd_to_chan``, ``_chan_to_sock``; that it calls
``handlers[type]`` of a readable channel if its ``qos.can_consume()``, and ``_poll_error(type)``.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kombu.asynchronous import get_event_loop
from redis.exceptions import RedisError, ResponseError

from celery_lease.brokers.redis.client import close_pool, pool_like
from celery_lease.brokers.redis.refusals import will_pass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from celery_lease.brokers.redis.driver import RedisDriver

#: The channel on which tracked keys are published.
NEWS = "__redis__:invalidate"
#: Longest wait for a reply, and for the notification of the test, in seconds.
ANSWER_TIMEOUT = 2.0
#: Its type for kombu's poller.
TYPE = "WATCH"


class Refused(Exception):
    """The server does not notify, and why; *for_good*: trying again is useless."""

    def __init__(self, why: str, *, for_good: bool = True) -> None:
        super().__init__(why)
        self.for_good = for_good


class Watch:
    """The connection. For the consuming thread."""

    def __init__(self, channel: Any, driver: RedisDriver, changed: Callable[[], None]) -> None:
        """Open and test it; *changed* is called when a tracked key has changed.

        Raises:
            Refused: The server does not notify, or does not accept another connection.
            redis.RedisError, OSError: The channel's connection failed.
        """
        self._cycle = channel.connection.cycle
        self._changed = changed
        self.handlers = {TYPE: self._read}
        self.qos = self
        self._pool = pool_like(channel, old_protocol=True)
        self.connection: Any = self._pool.make_connection()
        self._asking = channel.client.connection
        self._socket = self._asking._sock  # noqa: SLF001
        try:
            self.asking_id = self._begin(driver)
        except BaseException:
            self.close()
            raise
        self._cycle._register(self, self, TYPE)  # noqa: SLF001

    def serves(self, connection: Any) -> bool:
        """Whether notifications for *connection* come here."""
        return (
            self._asking is connection
            and self._socket is connection._sock  # noqa: SLF001
            and self.connection._sock is not None  # noqa: SLF001
        )

    @staticmethod
    def track(keys: Collection[str]) -> list[tuple[str, ...]]:
        """Return the commands for the channel's connection that track *keys*.

        The reply to the last one is the number of keys that exist.
        """
        return [("CLIENT", "CACHING", "YES"), ("EXISTS", *keys)]

    def close(self) -> None:
        if (self, self, TYPE) in self._cycle._chan_to_sock:  # noqa: SLF001
            self._forget(self._cycle._chan_to_sock.pop((self, self, TYPE)))  # noqa: SLF001
        with suppress(RedisError, OSError):
            self.connection.disconnect()
        close_pool(self._pool)

    # The members that kombu's poller uses.

    def can_consume(self) -> bool:
        """Notifications can be read at any time."""
        return True

    def _poll_error(self, *_: Any) -> None:
        self._read()

    def _read(self) -> None:
        try:
            while True:
                self.connection.read_response()
                if not self.connection.can_read(0):
                    break
        except (RedisError, OSError):
            self.close()
        self._changed()

    def _begin(self, driver: RedisDriver) -> int:
        probe = f"{driver.keys.unacked}.probe.{uuid.uuid4().hex}"
        with _refusing(RedisError, OSError):
            self.connection.connect()
            mine = _ask(self.connection, "CLIENT", "ID")
            _ask(self.connection, "SUBSCRIBE", NEWS)
        with _refusing(ResponseError):
            asking_id = int(_ask(self._asking, "CLIENT", "ID"))
            _ask(self._asking, "CLIENT", "TRACKING", "ON", "REDIRECT", mine, "OPTIN", "NOLOOP")
            for command in self.track([probe]):
                _ask(self._asking, *command)
        with _refusing(RedisError, OSError):
            driver.server.call(lambda client: client.set(probe, "", px=1000))
            driver.server.call(lambda client: client.client_unblock(asking_id))
            if not self.connection.can_read(ANSWER_TIMEOUT):
                raise Refused(
                    f"no notification of a changed key within {ANSWER_TIMEOUT:g} s", for_good=False
                )
            self.connection.read_response()
        return asking_id

    def _forget(self, socket: Any) -> None:
        """Remove the socket from kombu's poller, or from the event loop that owns it."""
        for fd, (channel, _) in list(self._cycle._fd_to_chan.items()):  # noqa: SLF001
            if channel is not self:
                continue
            del self._cycle._fd_to_chan[fd]  # noqa: SLF001
            loop = get_event_loop()
            if loop is not None and loop.poller is self._cycle.poller:
                loop.remove_reader(fd)
                return
            with suppress(OSError, ValueError, KeyError):
                self._cycle.poller.unregister(socket)


@contextmanager
def _refusing(*errors: type[Exception]) -> Iterator[None]:
    """Raise ``Refused`` for *errors*: for good if it is the server's reply and will not pass."""
    try:
        yield
    except errors as exc:
        for_good = isinstance(exc, ResponseError) and not will_pass(exc)
        raise Refused(str(exc), for_good=for_good) from exc


def _ask(connection: Any, *command: Any) -> Any:
    connection.send_command(*command)
    if not connection.can_read(ANSWER_TIMEOUT):
        raise TimeoutError(f"no answer to {command[0]} within {ANSWER_TIMEOUT:g} s")
    return connection.read_response()
