"""The state that a task saves for the run that goes on in its place.

A checkpoint belongs to a task id. It serves every later run of that id: after a crash, a lost
lease, an orderly hand-over, a retry, and when a failed or dead-lettered task is sent again with its
id. It is removed once the task's success is stored. A task that was put in its place with
``Task.replace`` has the same id and another name, and does not see it.

Where it is kept (:mod:`.stores`): in the result backend if that is a key-value store that other
workers reach, else at a Redis broker, else nowhere: :class:`CheckpointError`.

How it is fenced: each stored checkpoint bears the fencing token of the run that saved it, and a run
with a smaller token is refused, which is ``LeaseLost`` in that run. On Redis the comparison and the
write are one step, reading ``restored`` fences too, and after a success the token stays for ten
minutes. In other stores they are two steps: a run that lost its lease and is paused exactly
between them may replace the checkpoint of the new holder by its own older one. A later run then
repeats work, at most back to there; the new holder's next checkpoint repairs it.

How long it takes: on Redis 5 seconds for an answer and as much again after a broken connection; in
other stores what their backend allows.

When it expires: as results do, ``result_expires`` after it was saved; on Redis it outlives a
shorter ``result_expires`` by up to a day until the task has failed for good. A file-system backend
removes it in ``celery.backend_cleanup``, as it does results.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from billiard.exceptions import SoftTimeLimitExceeded

from celery_lease.checkpoints.envelope import LIMIT, pack, unpack
from celery_lease.checkpoints.errors import (
    CheckpointError,
    CheckpointTooLarge,
    CheckpointUnavailable,
    CheckpointUnreadable,
)
from celery_lease.checkpoints.memory import MemoryStore
from celery_lease.core.clock import SystemClock
from celery_lease.core.errors import LeaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_lease.checkpoints.stores import Store

__all__ = [
    "LIMIT",
    "CheckpointError",
    "CheckpointTooLarge",
    "CheckpointUnavailable",
    "CheckpointUnreadable",
    "Checkpoints",
    "Superseded",
]


class Superseded(Exception):
    """A later run of the task was here: nothing was changed. The context makes it ``LeaseLost``."""


class Checkpoints:
    """One run's access to the checkpoint of its task.

    The lock keeps the saves of several threads in order. It is taken by threads of this run only,
    and held during I/O, which the stores bound.
    """

    def __init__(
        self,
        task_id: str,
        *,
        task: str = "",
        token: int = 0,
        find: Callable[[], Store] | None = None,
    ) -> None:
        """*find* reaches the store, at the first use; None: this object's memory is the store."""
        self.task_id = task_id
        self.task = task
        self.token = token
        self._find = find
        self._store: Store | None = None
        self._loaded = False
        self._text: str | bytes | None = None
        self._lock = threading.Lock()

    @property
    def used(self) -> bool:
        """Whether the store was reached."""
        return self._store is not None

    def save(self, value: Any) -> None:
        """Store *value* in place of what was there.

        Raises:
            TypeError: It is not JSON-able.
            CheckpointError: It is too large, or was not stored.
            Superseded: A later run was here.
        """
        saved = SystemClock().wall()
        text = pack(value, task_id=self.task_id, task=self.task, token=self.token, saved=saved)
        with self._lock, self._answers() as store:
            if not store.save(self.task_id, self.token, text):
                raise Superseded

    def restored(self) -> Any:
        """Return what was stored at the first call, each time as a new object, or None.

        Raises:
            CheckpointError: It could not be read.
            Superseded: A later run was here.
        """
        with self._lock:
            if not self._loaded:
                self._text = self._load()
                self._loaded = True
        if self._text is None:
            return None
        stored = unpack(self._text, task_id=self.task_id)
        return stored.value if stored.task == self.task else None

    def forget(self) -> None:
        """Remove the checkpoint of a task that succeeded, unless a later run was here."""
        with self._lock, self._answers() as store:
            store.forget(self.task_id, self.token)

    def retire(self) -> None:
        """Let the checkpoint of a task that failed for good expire with its result."""
        with self._lock, self._answers() as store:
            store.retire(self.task_id, self.token)

    def _load(self) -> str | bytes | None:
        with self._answers() as store:
            held, text = store.load(self.task_id, self.token)
        if not held:
            raise Superseded
        return text

    @contextmanager
    def _answers(self) -> Iterator[Store]:
        """Give the store, and one kind of error for everything that can go wrong with it."""
        try:
            if self._store is None:
                self._store = self._find() if self._find else MemoryStore()
                self._find = None  # it knows the request, which knows us: no cycle
            yield self._store
        except (LeaseError, Superseded, SoftTimeLimitExceeded):
            raise  # the limit's signal may arrive while the store is asked
        except Exception as exc:  # as many kinds as there are client libraries
            name = "the checkpoint store" if self._store is None else self._store.name
            reason = f"{type(exc).__name__}: {exc}"
            raise CheckpointUnavailable(self.task_id, name, reason) from exc
