"""The stores of checkpoints: key-value result backends, files, and the brokers Redis and pgmq.

The result backend has the connection, its security and the prefixes; only its key-value operations
are used. Redis is the exception: the client library is used directly, with a limit in seconds for
an answer, and a comparison that is one step with the write. So it is on pgmq.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from kombu.utils.encoding import bytes_to_str

from celery_lease import brokers
from celery_lease.task.checkpoints.envelope import unpack
from celery_lease.task.checkpoints.errors import CheckpointError, CheckpointUnreadable

if TYPE_CHECKING:
    from celery import Celery, Task

#: Suffix of a checkpoint's key, which begins like the key of the task's result: so prefixes, access
#: rules and the clean-up of expired results apply to both.
SUFFIX = ".checkpoint"

BROKER = "broker"
#: Longest wait for the broker until its store is found, in seconds.
CONNECT_TIMEOUT = 5.0


class Store(Protocol):
    """Stores one text for each task id. Methods block for a limited time and may raise errors."""

    name: str  #: for messages

    def save(self, task_id: str, token: int, text: str) -> bool:
        """Store *text*; False: a run with a larger token has used the checkpoint."""
        ...

    def load(self, task_id: str, token: int) -> tuple[bool, str | bytes | None]:
        """Return whether no run with a larger token has used it, and the text, or None."""
        ...

    def peek(self, task_id: str) -> str | bytes | None:
        """Return the text, if any, for somebody who looks on: nothing is changed."""
        ...

    def forget(self, task_id: str, token: int) -> bool:
        """Delete the text; False as in :meth:`save`."""
        ...

    def retire(self, task_id: str, token: int) -> bool:
        """Let the text expire with the task's result; False as in :meth:`save`."""
        ...


class KeyValueStore:
    """A Celery result backend with keys and values; it reads a key before it writes it."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.name = f"result backend {type(backend).__name__}"

    def save(self, task_id: str, token: int, text: str) -> bool:
        """Store *text* unless a later run's is there; the package's docstring states the limits."""
        if not self.load(task_id, token)[0]:
            return False
        self._write(self._key(task_id), text)
        return True

    def load(self, task_id: str, token: int) -> tuple[bool, str | bytes | None]:
        text = self.peek(task_id)
        return text is None or _token(text, task_id) <= token, text

    def peek(self, task_id: str) -> str | bytes | None:
        return self._backend.get(self._key(task_id)) or None

    def forget(self, task_id: str, token: int) -> bool:
        held, text = self.load(task_id, token)
        if held and text is not None:
            with suppress(FileNotFoundError):
                self._backend.delete(self._key(task_id))
        return held

    def retire(self, _task_id: str, _token: int) -> bool:
        """Do nothing: the backend sets the expiry of results on its keys."""
        return True

    def _key(self, task_id: str) -> Any:
        return self._backend.get_key_for_task(task_id, SUFFIX)

    def _write(self, key: Any, text: str) -> None:
        self._backend.set(key, text)


class FileStore(KeyValueStore):
    """The file-system backend, which truncates a file before it writes it."""

    def _write(self, key: Any, text: str) -> None:
        """Replace the file in one step: after a crash it has the old checkpoint or the new one."""
        draft = key + f".{os.getpid()}.{threading.get_ident()}".encode()
        path = self._backend._filename  # noqa: SLF001  (celery 5.5 to 5.7)
        self._backend.set(draft, text)
        os.replace(path(draft), path(key))  # noqa: PTH105  (bytes)


def find(task: Task[Any, Any], task_id: str) -> Store:
    """Return the store for the checkpoints of a bound task.

    Raises:
        CheckpointError: Neither the result backend nor the broker can keep them.
    """
    store = store_of(task.app, task.backend)
    if store is None:
        raise CheckpointError(task_id, _nowhere(task.backend, task.app))
    return store


def store_of(app: Celery, backend: Any) -> Store | None:
    """Return where tasks with a result backend keep checkpoints; None: nowhere."""
    return _of_backend(backend, app) or _of_broker(app)


def _of_backend(backend: Any, app: Celery) -> Store | None:
    from celery.backends.base import BaseKeyValueStoreBackend  # noqa: PLC0415
    from celery.backends.filesystem import FilesystemBackend  # noqa: PLC0415

    if not isinstance(backend, BaseKeyValueStoreBackend):
        return None
    if getattr(backend, "backend", None) == "memory":
        return None  # cache+memory:// ends with this process
    if isinstance(backend, FilesystemBackend):
        return FileStore(backend)
    return _of_redis(backend, app) if on_redis(backend) else KeyValueStore(backend)


def on_redis(backend: Any) -> bool:
    """Return whether a result backend is on Redis.

    Celery's module cannot be imported without redis-py, so it is only looked up: a backend on Redis
    has imported it.
    """
    module = sys.modules.get("celery.backends.redis")
    return module is not None and isinstance(backend, module.RedisBackend)


# One store, with its connections, for each place that an app of this process uses. Celery creates a
# backend for each thread or greenlet, and a connection for each would be too many. A dict store is
# atomic; two threads that both connect create one store too many, and both work.
_stores: WeakKeyDictionary[Celery, dict[object, Store]] = WeakKeyDictionary()


def _of_redis(backend: Any, app: Celery) -> Store:
    from celery_lease.brokers.redis.checkpoint import RedisCheckpoints  # noqa: PLC0415
    from celery_lease.brokers.redis.client import address, pool_like  # noqa: PLC0415

    name = f"result backend {type(backend).__name__}"
    channel = SimpleNamespace(pool=backend.client.connection_pool)
    prefix, expires = bytes_to_str(backend.task_keyprefix), backend.expires or 0
    place = (name, backend.url, address(channel), prefix, expires)
    stores = _stores.setdefault(app, {})
    if place not in stores:
        stores[place] = RedisCheckpoints(
            pool_like(channel),
            name=name,
            key=lambda task_id: f"{prefix}{task_id}{SUFFIX}",
            expires=expires,
            failure_expires=getattr(backend, "failure_expires", expires) or 0,  # celery 5.7
        )
    return stores[place]


def _of_broker(app: Celery) -> Store | None:
    stores = _stores.setdefault(app, {})
    if BROKER not in stores:
        # The broker that the worker reads from, as for leases; messages may be sent to another.
        with app.connection_for_read() as connection:
            driver = brokers.driver_class(connection.transport.driver_type)
            if not driver.capabilities.checkpoints:
                return None
            driver.bound(connection, CONNECT_TIMEOUT)
            expires = int(app.backend.prepare_expires(None, type=int) or 0)
            # channel() tries once; default_channel would retry until the broker is back.
            stores[BROKER] = driver.checkpoints(connection.channel(), expires)
    return stores[BROKER]


def _nowhere(backend: Any, app: Celery) -> str:
    with app.connection_for_read() as connection:
        broker = connection.transport.driver_type
    return (
        f"no place to keep it: result backend {type(backend).__name__} is no key-value store that "
        f"other workers reach, and broker {broker!r} is neither Redis nor pgmq; set result_backend "
        "to one, such as redis://"
    )


def _token(text: str | bytes, task_id: str) -> int:
    """Return the token in a stored text; 0 if it is unreadable, so that it stops no run."""
    try:
        return unpack(text, task_id=task_id).token
    except CheckpointUnreadable:
        return 0
