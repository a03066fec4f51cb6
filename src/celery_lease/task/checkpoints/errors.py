"""The errors of checkpoints.

::

    CheckpointError (a LeaseError)    there is no store for checkpoints
    ├── CheckpointTooLarge            the state is over the limit; nothing was saved
    ├── CheckpointUnreadable          the stored text is not of this version; it is kept
    ├── CheckpointMismatch            the stored place belongs to another loop; it is kept
    └── CheckpointUnavailable         the store did not answer, or refused

They keep their facts as attributes and survive pickling, like :mod:`celery_lease.core.errors`.
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
    """The state is larger than the limit. The former checkpoint is unchanged."""

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
    """This version cannot read the stored checkpoint, which is kept unchanged.

    Catch it to begin from the start; the next ``checkpoint()`` then replaces the stored state. Or
    let the task fail: the state is kept for a later run, sent with the same id to workers that can
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


class CheckpointMismatch(CheckpointError):
    """The stored place does not belong to the loop that begins. It is kept unchanged."""

    def __init__(self, task_id: str = "", loop: str = "", reason: str = "") -> None:
        problem = (
            f"loop {loop!r} cannot go on where it was: {reason}. Let the workers run the code that "
            'saved it, or pass on_mismatch="restart" to begin this loop anew'
        )
        super().__init__(task_id, problem)
        self.args = (task_id, loop, reason)
        self.loop = loop
        self.reason = reason


class CheckpointUnavailable(CheckpointError):
    """The store did not answer, or refused: the state may or may not be saved.

    Catch it where a missed checkpoint only means repeated work, until the next one is saved. With
    ``autoretry_for=(CheckpointUnavailable,)`` the task is retried, from its last saved state.
    """

    def __init__(self, task_id: str = "", store: str = "", reason: str = "") -> None:
        super().__init__(task_id, f"{store} did not take the request: {reason}")
        self.args = (task_id, store, reason)
        self.store = store
        self.reason = reason
