"""Redis connections of the driver's own, like kombu's but bounded in time.

Kombu's client is not used for commands: it prefixes only some of them, has no socket timeout by
default, and belongs to the channel that may be closed while leases live on.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

import redis
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Longest wait for one answer, in seconds, where no lease asks for a shorter one.
ANSWER_TIMEOUT = 5.0


def pool_like(channel: Any, *, max_connections: int = 8) -> redis.ConnectionPool:
    """Return a new pool to the server that a kombu *channel* talks to, Sentinel included.

    Without retries: a caller here knows better than the client whether it is still worth asking.
    """
    theirs = channel.pool
    options = {
        **theirs.connection_kwargs,
        "socket_timeout": ANSWER_TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "client_name": "celery-lease",
    }
    if "path" not in options:
        options["socket_connect_timeout"] = ANSWER_TIMEOUT
    options.pop("connection_pool", None)
    cls = theirs.connection_class
    if isinstance(theirs, redis.sentinel.SentinelConnectionPool):
        return redis.sentinel.SentinelConnectionPool(
            theirs.service_name,
            theirs.sentinel_manager,
            is_master=theirs.is_master,
            connection_class=cls,
            **options,
        )
    return redis.ConnectionPool(cls, max_connections, **options)


class Line:
    """One connection with a timeout for each call, for one thread at a time.

    The lock lets calls queue up rather than mix their answers on the socket; it is held during
    the call, which the timeout bounds.
    """

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._client = redis.Redis(connection_pool=pool)
        self._client.connection = pool.make_connection()
        self._lock = threading.Lock()

    def call(self, command: Callable[[redis.Redis], T], *, timeout: float) -> T:
        """Run *command* with this line's client, waiting at most *timeout* seconds per answer."""
        with self._lock:
            connection = self._client.connection
            connection.socket_timeout = timeout
            sock = getattr(connection, "_sock", None)
            if sock is not None:
                sock.settimeout(timeout)
            elif hasattr(connection, "socket_connect_timeout"):
                connection.socket_connect_timeout = timeout
            return command(self._client)

    def close(self) -> None:
        """Close the connection."""
        self._client.connection.disconnect()
