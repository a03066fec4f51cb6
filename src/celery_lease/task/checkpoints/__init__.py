"""The state that a task saves for its next run.

The places of the task's loops are stored with it (:mod:`celery_lease.task.iterating`): each save
writes both.

A checkpoint belongs to a task id. It serves every later run of that id: after a crash, a lost
lease, an orderly hand-over, a retry, and when a failed or dead-lettered task is sent again with its
id. It is removed once the task's success is stored. A task that replaces it by ``Task.replace`` has
the same id and another name, and does not see it.

Its store (:mod:`.stores`) is the result backend if that is a key-value store that other workers
reach, else a broker on Redis or pgmq; without either :class:`CheckpointError` is raised.

Its fence: each stored checkpoint has the fencing token of the run that saved it, and a run with a
smaller token is refused, which is ``LeaseLost`` in that run. On Redis and pgmq the comparison and
the write are one step, reading ``restored`` fences, too, and after a success the token stays for
ten minutes. In other stores they are two steps: a run that lost its lease and is paused exactly
between them may replace the checkpoint of the new holder by its own older one. A later run then
repeats work, at most back to there; the new holder's next checkpoint repairs it.

Its time limits: on Redis and pgmq 5 seconds for an answer and as much again after a broken
connection; in other stores those of their backend.

Its expiry: that of results, ``result_expires`` after it was saved; on Redis and pgmq it outlives a
shorter ``result_expires`` by up to a day until the task has failed for good. A file-system backend
removes it in ``celery.backend_cleanup``, like results; on pgmq later writes delete expired rows.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from billiard.exceptions import SoftTimeLimitExceeded

from celery_lease.core.clock import SystemClock
from celery_lease.core.errors import LeaseError
from celery_lease.core.secrets import masked
from celery_lease.task.checkpoints.envelope import LIMIT, Envelope, seal, to_json, unpack
from celery_lease.task.checkpoints.errors import (
    CheckpointError,
    CheckpointMismatch,
    CheckpointTooLarge,
    CheckpointUnavailable,
    CheckpointUnreadable,
)
from celery_lease.task.checkpoints.memory import MemoryStore
from celery_lease.task.iterating.places import Places, to_json as places_to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_lease.task.checkpoints.stores import Store

__all__ = [
    "LIMIT",
    "CheckpointError",
    "CheckpointMismatch",
    "CheckpointTooLarge",
    "CheckpointUnavailable",
    "CheckpointUnreadable",
    "Checkpoints",
    "Superseded",
]


class Superseded(Exception):
    """A later run has used the checkpoint: nothing was changed. The context raises LeaseLost."""


class Checkpoints:
    """One run's access to the checkpoint of its task.

    The lock keeps the saves of several threads in order. Only threads of this run take it. It is
    held during I/O, which the stores limit.
    """

    def __init__(
        self,
        task_id: str,
        *,
        task: str = "",
        token: int = 0,
        find: Callable[[], Store] | None = None,
    ) -> None:
        """*find* returns the store, at the first use; None: this object's memory is the store."""
        self.task_id = task_id
        self.task = task
        self.token = token
        self._find = find
        self._store: Store | None = None
        self._loaded = False
        self._text: str | bytes | None = None
        self._state = "null"  #: JSON of the state that is stored now
        self._places: Places | None = None  #: of the loops; None: not read yet
        self._resumes = True  #: loops begin at their stored places
        self._lock = threading.Lock()

    @property
    def used(self) -> bool:
        """Whether the store was looked up."""
        return self._store is not None

    def save(self, value: Any) -> None:
        """Store *value* in place of the former state.

        Raises:
            TypeError: *value* is not JSON-able.
            CheckpointError: It is too large, or was not stored.
            Superseded: A later run has used the checkpoint.
        """
        state = to_json(value, self.task_id)
        with self._lock:
            try:
                self._find_places()
            except CheckpointUnreadable:  # a new state replaces it
                self._places = Places()
            self._write(state)

    def save_places(self) -> None:
        """Store the places of the loops, with the stored state.

        Raises:
            TypeError: A cursor cannot be stored.
            CheckpointError: As :meth:`save`.
            Superseded: A later run has used the checkpoint.
        """
        with self._lock:
            self._find_places()
            self._write(self._state)

    def places(self) -> Places:
        """Return the places of this run's loops; at first they are those of the last run.

        Raises:
            CheckpointError: They could not be read.
            Superseded: A later run has used the checkpoint.
        """
        with self._lock:
            return self._find_places()

    def forget_places(self) -> None:
        """Forget the places of all loops: the next items are other work under the same task id."""
        with self._lock:
            self._resumes = False
            if self._places is not None:
                self._places.forget()

    @property
    def open_places(self) -> Places | None:
        """The places of the loops; None: this run has begun none."""
        return self._places

    def restored(self) -> Any:
        """Return the state that was stored at the first call, as a new object each time, or None.

        Raises:
            CheckpointError: It could not be read.
            Superseded: A later run has used the checkpoint.
        """
        with self._lock:
            if not self._loaded:
                self._text = self._load()
                self._loaded = True
        stored = self._unpacked(self._text)
        return stored.value if stored else None

    def forget(self) -> None:
        """Remove the checkpoint of a task that succeeded, unless a later run has used it."""
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

    def _unpacked(self, text: str | bytes | None) -> Envelope | None:
        """Return the stored checkpoint, if it belongs to a task of this name."""
        stored = None if text is None else unpack(text, task_id=self.task_id)
        return stored if stored and stored.task == self.task else None

    def _find_places(self) -> Places:
        """Read the places once, and the state that every save has to include."""
        if self._places is None:
            stored = self._unpacked(self._text if self._loaded else self._load())
            try:
                places = Places(stored.loops if stored and self._resumes else None)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as exc:
                reason = f"the place of a loop is damaged or of a later version ({exc!r})"
                raise CheckpointUnreadable(self.task_id, reason) from None
            self._state = to_json(stored.value, self.task_id) if stored else "null"
            self._places = places
        return self._places

    def _write(self, state: str) -> None:
        places = self._places or Places()
        changes = places.changes  # first: changes from here on are saved next time
        text = seal(
            state,
            places_to_json(places.top),
            task_id=self.task_id,
            task=self.task,
            token=self.token,
            saved=SystemClock().wall(),
        )
        with self._answers() as store:
            if not store.save(self.task_id, self.token, text):
                raise Superseded
        self._state = state
        places.saved = changes

    @contextmanager
    def _answers(self) -> Iterator[Store]:
        """Yield the store, and convert all its errors to CheckpointUnavailable."""
        try:
            if self._store is None:
                self._store = self._find() if self._find else MemoryStore()
                self._find = None  # avoid a cycle: it refers to the request
            yield self._store
        except (LeaseError, Superseded, SoftTimeLimitExceeded):
            raise  # the limit's signal may arrive during a call of the store
        except Exception as exc:  # as many kinds as there are client libraries
            name = "the checkpoint store" if self._store is None else self._store.name
            reason = f"{type(exc).__name__}: {masked(exc)}"
            raise CheckpointUnavailable(self.task_id, name, reason) from exc
