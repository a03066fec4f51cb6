"""Where checkpoints are kept, and how the task process gets there.

The result backend knows how to be reached, secured and prefixed; its key-value operations are all
that is used of it. Redis is the exception: there the client library is used directly, with an
answer bounded in seconds and a comparison that is one step with the write.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from kombu.utils.encoding import bytes_to_str

from celery_lease.checkpoints.envelope import unpack
from celery_lease.checkpoints.errors import CheckpointError, CheckpointUnreadable

if TYPE_CHECKING:
    from celery import Celery, Task

#: Ends a checkpoint's key, which begins like the key of the same task's result: so prefixes, access
#: rules and the clean-up of expired results hold for both.
SUFFIX = ".checkpoint"

BROKER = "broker"


class Store(Protocol):
    """Keeps one text for each task id. Methods block for a bounded time and may raise anything."""

    name: str  #: for messages

    def save(self, task_id: str, token: int, text: str) -> bool:
        """Keep *text*, or return False if a run with a larger token was here."""
        ...

    def load(self, task_id: str, token: int) -> tuple[bool, str | bytes | None]:
        """Return whether no run with a larger token was here, and the text, if any."""
        ...

    def forget(self, task_id: str, token: int) -> bool:
        """Remove the text; False as in :meth:`save`."""
        ...

    def retire(self, task_id: str, token: int) -> bool:
        """Let the text expire with the task's result; False as in :meth:`save`."""
        ...


class KeyValueStore:
    """A Celery result backend that gets, sets and deletes keys; it reads before it writes."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.name = f"result backend {type(backend).__name__}"

    def save(self, task_id: str, token: int, text: str) -> bool:
        """Keep *text* unless a later run's is there; see the package for what that leaves open."""
        if not self.load(task_id, token)[0]:
            return False
        self._write(self._key(task_id), text)
        return True

    def load(self, task_id: str, token: int) -> tuple[bool, str | bytes | None]:
        text = self._backend.get(self._key(task_id)) or None
        return text is None or _token(text, task_id) <= token, text

    def forget(self, task_id: str, token: int) -> bool:
        held, text = self.load(task_id, token)
        if held and text is not None:
            with suppress(FileNotFoundError):
                self._backend.delete(self._key(task_id))
        return held

    def retire(self, _task_id: str, _token: int) -> bool:
        """Do nothing: the backend gives its keys the expiry of results."""
        return True

    def _key(self, task_id: str) -> Any:
        return self._backend.get_key_for_task(task_id, SUFFIX)

    def _write(self, key: Any, text: str) -> None:
        self._backend.set(key, text)


class FileStore(KeyValueStore):
    """The file-system backend, which empties a file before it writes it."""

    def _write(self, key: Any, text: str) -> None:
        """Replace the file in one step: a crash leaves the old checkpoint or the new one."""
        draft = key + f".{os.getpid()}.{threading.get_ident()}".encode()
        path = self._backend._filename  # noqa: SLF001  (celery 5.5 to 5.7)
        self._backend.set(draft, text)
        os.replace(path(draft), path(key))  # noqa: PTH105  (bytes)


def find(task: Task[Any, Any], task_id: str) -> Store:
    """Return the store for the checkpoints of a bound task.

    Raises:
        CheckpointError: Neither the result backend nor the broker can keep them.
    """
    store = _of_backend(task.backend, task.app) or _of_broker(task.app)
    if store is None:
        raise CheckpointError(task_id, _nowhere(task.backend, task.app))
    return store


def _of_backend(backend: Any, app: Celery) -> Store | None:
    from celery.backends.base import BaseKeyValueStoreBackend  # noqa: PLC0415
    from celery.backends.filesystem import FilesystemBackend  # noqa: PLC0415

    if not isinstance(backend, BaseKeyValueStoreBackend):
        return None
    if getattr(backend, "backend", None) == "memory":
        return None  # cache+memory:// ends with this process
    if isinstance(backend, FilesystemBackend):
        return FileStore(backend)
    return _of_redis(backend, app) if _is_redis(backend) else KeyValueStore(backend)


def _is_redis(backend: Any) -> bool:
    from celery.backends.redis import RedisBackend  # noqa: PLC0415

    return isinstance(backend, RedisBackend)


# One store, with its connections, for each place that an app of this process keeps them in. Celery
# makes a backend for each thread or greenlet, which is too often to connect. A dictionary's store
# is atomic; two threads that both connect make one store too many, and both work.
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
        # Where the worker reads its messages, as for their leases; they may be sent elsewhere.
        with app.connection_for_read() as connection:
            if connection.transport.driver_type != "redis":
                return None
            from celery_lease.brokers.redis.checkpoint import connect  # noqa: PLC0415

            expires = int(app.backend.prepare_expires(None, type=int) or 0)
            # channel() tries once; default_channel would go on until the broker is back.
            stores[BROKER] = connect(connection.channel(), expires)
    return stores[BROKER]


def _nowhere(backend: Any, app: Celery) -> str:
    with app.connection_for_read() as connection:
        broker = connection.transport.driver_type
    return (
        f"no place to keep it: result backend {type(backend).__name__} is no key-value store that "
        f"other workers reach, and broker {broker!r} is not Redis; set result_backend to one, "
        "such as redis://"
    )


def _token(text: str | bytes, task_id: str) -> int:
    """Return the token in a stored text; what cannot be read stands in nobody's way."""
    try:
        return unpack(text, task_id=task_id).token
    except CheckpointUnreadable:
        return 0
