"""The driver's own Redis connections, like kombu's but bounded in time.

Kombu's client is not used for commands: it prefixes only some of them, has no socket timeout by
default, and belongs to a channel that may be closed while leases live on.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from celery_lease.brokers.redis.refusals import is_replica

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Longest wait for one answer, in seconds, unless a lease has less time.
ANSWER_TIMEOUT = 5.0
#: The same for a sentinel, which answers from memory and has peers to ask.
SENTINEL_TIMEOUT = 1.0
#: The name of these connections in the server's list of clients.
NAME = "celery-lease"
#: Calls under way at once, each on a connection of its own; further calls wait.
CONNECTIONS = 8

_BOUNDS = {"socket_timeout": ANSWER_TIMEOUT, "socket_connect_timeout": ANSWER_TIMEOUT}


def address(channel: Any) -> tuple[object, ...]:
    """Return facts that identify the server and database of a kombu *channel*."""
    pool = channel.pool
    facts = tuple(pool.connection_kwargs.get(name) for name in ("host", "port", "path", "db"))
    if isinstance(pool, SentinelConnectionPool):
        return pool.service_name, *facts
    return facts


def pool_like(channel: Any, *, old_protocol: bool = False) -> redis.ConnectionPool:
    """Return a new pool for the server of a kombu *channel*, Sentinel included.

    Without retries: the caller knows better than the client whether a repetition is still useful.
    *old_protocol* selects RESP2, whatever the channel uses.
    """
    theirs = channel.pool
    options = {
        **theirs.connection_kwargs,
        **_BOUNDS,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "health_check_interval": 0,  # a call reveals as much as a ping before it
        "redis_connect_func": _introduce(theirs.connection_kwargs.get("redis_connect_func")),
        "connection_class": theirs.connection_class,
        "max_connections": CONNECTIONS + 1,
    }
    if old_protocol:  # redis-py refuses its maintenance notifications there
        options = {name: each for name, each in options.items() if "notifications" not in name}
        options["protocol"] = 2
    if "path" in options:
        del options["socket_connect_timeout"]  # a unix socket has none
    options.pop("connection_pool", None)
    options.pop("client_name", None)
    if isinstance(theirs, SentinelConnectionPool):
        manager = _sentinel_like(theirs.sentinel_manager)
        return SentinelConnectionPool(  # type: ignore[no-untyped-call]
            theirs.service_name, manager, is_master=theirs.is_master, **options
        )
    return redis.ConnectionPool(**options)


def close_pool(pool: redis.ConnectionPool) -> None:
    """Close all connections of a *pool*, and its connections to sentinels."""
    pool.disconnect()
    if isinstance(pool, SentinelConnectionPool):
        for sentinel in pool.sentinel_manager.sentinels:
            sentinel.connection_pool.disconnect()


def _introduce(theirs: Callable[[Any], None] | None) -> Callable[[Any], None]:
    """Return a function that prepares a new connection, and names it if the server allows that."""

    def introduce(connection: Any) -> None:
        connection.on_connect() if theirs is None else theirs(connection)
        with suppress(redis.ResponseError):
            connection.send_command("CLIENT", "SETNAME", NAME)
            connection.read_response()

    return introduce


def _sentinel_like(theirs: Any) -> Any:
    """Return a sentinel client of our own: kombu closes its client with the channel."""
    bounds = dict.fromkeys(_BOUNDS, SENTINEL_TIMEOUT)
    options = {**theirs.sentinel_kwargs, **bounds, "retry": Retry(NoBackoff(), 0)}
    nodes = [each.connection_pool.connection_kwargs for each in theirs.sentinels]
    addresses = [(node["host"], node["port"]) for node in nodes]
    return Sentinel(addresses, theirs.min_other_sentinels, options)  # type: ignore[no-untyped-call]


class Lines:
    """Connections for calls from any thread, limited in number; one more for urgent calls.

    A call that finds all of them busy waits. After a server has answered as a replica, its idle
    connections are closed: the next one to the same name may reach its successor.
    """

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self.client = redis.Redis(connection_pool=pool)
        self._pool = pool
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._urgent = redis.Redis(connection_pool=pool)
        self._connection: Any = pool.make_connection()
        self._urgent.connection = self._connection  # type: ignore[assignment]
        self._lock = threading.Lock()  # held during a call on the urgent connection

    def call(self, command: Callable[[redis.Redis], T]) -> T:
        """Run *command* with a client from the pool.

        Raises:
            redis.RedisError: It failed, was not answered in time, or no connection became free.
        """
        if not self._free.acquire(timeout=ANSWER_TIMEOUT):
            raise redis.TimeoutError("all connections for leases are busy")
        try:
            return command(self.client)
        except redis.ResponseError as exc:
            if is_replica(exc):
                self._pool.disconnect(inuse_connections=False)
            raise
        finally:
            self._free.release()

    def call_within(self, command: Callable[[redis.Redis], T], timeout: float) -> T:
        """Run *command* with a client that waits at most *timeout* seconds for an answer.

        Calls wait for each other, as they share one socket.
        """
        with self._lock:
            _bound(self._connection, timeout)
            self._connection.connect()  # the client by itself asks no sentinel for the address
            try:
                return command(self._urgent)
            except redis.ResponseError as exc:
                if is_replica(exc):
                    self._connection.disconnect()
                raise

    def close(self) -> None:
        self._connection.disconnect()
        close_pool(self._pool)


def _bound(connection: Any, timeout: float) -> None:
    """Limit the next answer on *connection* to *timeout* seconds; drop a socket that has ended."""
    connection.socket_timeout = timeout
    if hasattr(connection, "socket_connect_timeout"):
        connection.socket_connect_timeout = timeout
    if getattr(connection, "_sock", None) is None:
        return
    try:
        ended = connection.can_read(0)  # nothing was asked: readable data is the end
        connection._sock.settimeout(timeout)  # noqa: SLF001  (can_read sets it back)
    except (redis.RedisError, OSError, AttributeError):
        ended = True
    if ended:
        connection.disconnect()
