"""The errors of checkpoints.

::

    CheckpointError (a LeaseError)    there is no place for checkpoints
    ├── CheckpointTooLarge            the state is over the limit; nothing was saved
    ├── CheckpointUnreadable          what is stored is no checkpoint of this version; it stays
    └── CheckpointUnavailable         the store did not answer, or refused

They keep their facts as attributes and survive pickling, as do :mod:`celery_lease.core.errors`.
"""

from __future__ import annotations

from celery_lease.core.errors import LeaseError


class CheckpointError(LeaseError):
    """A checkpoint could not be saved or read; the lease and the task go on."""

    def __init__(self, task_id: str = "", problem: str = "") -> None:
        super().__init__(task_id, problem)
        self.task_id = task_id
        self.problem = problem

    def __str__(self) -> str:
        return f"checkpoint of task {self.task_id or '?'}: {self.problem}"


class CheckpointTooLarge(CheckpointError):
    """The state is larger than a checkpoint may be. The former checkpoint is untouched."""

    def __init__(self, task_id: str = "", size: int = 0, limit: int = 0) -> None:
        problem = (
            f"{size:,} bytes of JSON, and the limit is {limit:,}; "
            "save where the data is (a path, an id, an offset) rather than the data"
        )
        super().__init__(task_id, problem)
        self.args = (task_id, size, limit)
        self.size = size
        self.limit = limit


class CheckpointUnreadable(CheckpointError):
    """What is stored cannot be read by this version. It is left as it is.

    Catch it to begin anew, which the next ``checkpoint()`` then makes final; or let the task fail:
    the stored state stays for whoever sends the task again, with the same id, to workers that can
    read it.
    """

    def __init__(self, task_id: str = "", reason: str = "") -> None:
        problem = (
            f"not readable, {reason}; it was left as it is. Run the task on a worker whose "
            "celery-lease can read it, or catch CheckpointUnreadable to begin anew"
        )
        super().__init__(task_id, problem)
        self.args = (task_id, reason)
        self.reason = reason


class CheckpointUnavailable(CheckpointError):
    """The store did not answer, or refused: it is not known whether the state was saved.

    Catch it where a missed checkpoint only costs repeated work; the next one makes up for it. With
    ``autoretry_for=(CheckpointUnavailable,)`` the task is retried, from its last saved state.
    """

    def __init__(self, task_id: str = "", store: str = "", reason: str = "") -> None:
        super().__init__(task_id, f"{store} did not take the request: {reason}")
        self.args = (task_id, store, reason)
        self.store = store
        self.reason = reason
