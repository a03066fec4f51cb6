"""Redis connections of the driver's own, like kombu's but bounded in time.

Kombu's client is not used for commands: it prefixes only some of them, has no socket timeout by
default, and belongs to the channel that may be closed while leases live on.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Longest wait for one answer, in seconds, where no lease asks for a shorter one.
ANSWER_TIMEOUT = 5.0
#: The same for a sentinel, which answers from memory, and of which the next can be asked.
SENTINEL_TIMEOUT = 1.0
#: Calls under way at once, each on a connection of its own; pools of many threads have to queue.
CONNECTIONS = 8

_BOUNDS = {"socket_timeout": ANSWER_TIMEOUT, "socket_connect_timeout": ANSWER_TIMEOUT}


def address(channel: Any) -> tuple[object, ...]:
    """Return what tells the server and database of a kombu *channel* from all others."""
    pool = channel.pool
    facts = tuple(pool.connection_kwargs.get(name) for name in ("host", "port", "path", "db"))
    if isinstance(pool, SentinelConnectionPool):
        return pool.service_name, *facts
    return facts


def pool_like(channel: Any) -> redis.ConnectionPool:
    """Return a new pool to the server that a kombu *channel* talks to, Sentinel included.

    Without retries: a caller here knows better than the client whether it is still worth asking.
    """
    theirs = channel.pool
    options = {
        **theirs.connection_kwargs,
        **_BOUNDS,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "health_check_interval": 0,  # a call says as much as a ping before it
        "client_name": "celery-lease",
        "connection_class": theirs.connection_class,
        "max_connections": CONNECTIONS + 1,
    }
    if "path" in options:
        del options["socket_connect_timeout"]  # a unix socket knows none
    options.pop("connection_pool", None)
    if isinstance(theirs, SentinelConnectionPool):
        manager = _sentinel_like(theirs.sentinel_manager)
        return SentinelConnectionPool(  # type: ignore[no-untyped-call]
            theirs.service_name, manager, is_master=theirs.is_master, **options
        )
    return redis.ConnectionPool(**options)


def _sentinel_like(theirs: Any) -> Any:
    """Return a way of our own to the sentinels: kombu closes its one with the channel."""
    bounds = dict.fromkeys(_BOUNDS, SENTINEL_TIMEOUT)
    options = {**theirs.sentinel_kwargs, **bounds, "retry": Retry(NoBackoff(), 0)}
    nodes = [each.connection_pool.connection_kwargs for each in theirs.sentinels]
    addresses = [(node["host"], node["port"]) for node in nodes]
    return Sentinel(addresses, theirs.min_other_sentinels, options)  # type: ignore[no-untyped-call]


class Lines:
    """Connections for calls from any thread, so many at once; one more for the most urgent caller.

    A call that finds all of them busy waits its turn. After a server has called itself a replica
    nothing is kept of it: behind the same name the next connection may find its successor.
    """

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self.client = redis.Redis(connection_pool=pool)
        self._pool = pool
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._urgent = redis.Redis(connection_pool=pool)
        self._connection: Any = pool.make_connection()
        self._urgent.connection = self._connection  # type: ignore[assignment]
        self._lock = threading.Lock()  # the urgent connection is one caller's; held in its call

    def call(self, command: Callable[[redis.Redis], T]) -> T:
        """Run *command* with a client.

        Raises:
            redis.RedisError: It failed, was not answered in time, or no connection became free.
        """
        if not self._free.acquire(timeout=ANSWER_TIMEOUT):
            raise redis.TimeoutError("all connections for leases are busy")
        try:
            return command(self.client)
        except redis.ReadOnlyError:
            self._pool.disconnect(inuse_connections=False)
            raise
        finally:
            self._free.release()

    def call_within(self, command: Callable[[redis.Redis], T], timeout: float) -> T:
        """Run *command* with a client that waits at most *timeout* seconds for an answer.

        The calls queue up rather than mix their answers on the one socket.
        """
        with self._lock:
            _bound(self._connection, timeout)
            self._connection.connect()  # by itself it would not ask the sentinels for the address
            try:
                return command(self._urgent)
            except redis.ReadOnlyError:
                self._connection.disconnect()
                raise

    def close(self) -> None:
        """Close all connections."""
        self._connection.disconnect()
        self._pool.disconnect()
        if isinstance(self._pool, SentinelConnectionPool):
            for sentinel in self._pool.sentinel_manager.sentinels:
                sentinel.connection_pool.disconnect()


def _bound(connection: Any, timeout: float) -> None:
    """Let the next answer on *connection* take *timeout* seconds; drop a socket that has ended."""
    connection.socket_timeout = timeout
    if hasattr(connection, "socket_connect_timeout"):
        connection.socket_connect_timeout = timeout
    if getattr(connection, "_sock", None) is None:
        return
    try:
        ended = connection.can_read(0)  # nothing was asked: what can be read is the end
        connection._sock.settimeout(timeout)  # noqa: SLF001  (can_read sets it back)
    except (redis.RedisError, OSError, AttributeError):
        ended = True
    if ended:
        connection.disconnect()
