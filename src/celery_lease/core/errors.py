"""The errors of celery-lease.

::

    LeaseError
    ├── LeaseLost                  the lease is gone; stop side effects now
    ├── ShutdownRequested          the worker stops; save what is needed and return
    ├── TaskCancelled              somebody cancelled this task; clean up and return
    ├── TooManyDeliveries          the message was lost too often and is dead-lettered
    ├── ReceiptHandleExpiredError  the broker no longer knows this receipt
    ├── AlreadyAttached            (also RuntimeError) an extender serves one message at a time
    ├── UnsupportedBroker          the transport has no lease driver
    └── LeaseConfigError           (also ImproperlyConfigured) in :mod:`celery_lease.settings`

An error keeps its facts as attributes and hands them to ``Exception.__init__`` in order, so that it
survives the pickling between task process, worker and result backend.
"""

from __future__ import annotations


class LeaseError(Exception):
    """Root of all errors raised by celery-lease."""


class LeaseLost(LeaseError):
    """The lease on this task's message is gone: it expired or another delivery owns it.

    Stop side effects at once and let the error pass: the message is run elsewhere, and whatever
    this run still returns is thrown away. It is raised again at every further beat.
    """

    def __init__(self, task_id: str = "", reason: str = "expired") -> None:
        super().__init__(task_id, reason)
        self.task_id = task_id
        self.reason = reason

    def __str__(self) -> str:
        return f"lease of task {self.task_id or '?'} lost: {self.reason}"


class ShutdownRequested(LeaseError):
    """The worker stops and this task is interruptible: save what is needed and let it pass."""

    def __init__(self, task_id: str = "") -> None:
        super().__init__(task_id)
        self.task_id = task_id

    def __str__(self) -> str:
        return f"worker is shutting down, task {self.task_id or '?'} is handed over"


class TaskCancelled(LeaseError):
    """Somebody asked this task to stop: clean up and let the error pass.

    Its result becomes REVOKED, its message is acknowledged, and no callback is called. It is raised
    again at every further beat; the lease is kept for ``lease_extension`` from the first time on.
    A task that catches it and returns has finished in its own way: what it returns counts.
    """

    def __init__(self, task_id: str = "") -> None:
        super().__init__(task_id)
        self.task_id = task_id

    def __str__(self) -> str:
        return f"task {self.task_id or '?'} was cancelled"


class TooManyDeliveries(LeaseError):
    """A message's deliveries ended by loss too often; it went to the dead-letter queue."""

    def __init__(self, task_id: str = "", losses: int = 0, queue: str = "") -> None:
        super().__init__(task_id, losses, queue)
        self.task_id = task_id
        self.losses = losses
        self.queue = queue

    def __str__(self) -> str:
        return (
            f"task {self.task_id or '?'}: {self.losses} deliveries ended by loss, "
            f"message moved to queue {self.queue!r}"
        )


class ReceiptHandleExpiredError(LeaseError):
    """The broker no longer knows this delivery: it was settled, or handed to somebody else."""

    def __init__(self, message_id: str = "") -> None:
        super().__init__(message_id)
        self.message_id = message_id

    def __str__(self) -> str:
        return f"receipt of message {self.message_id or '?'} is no longer valid"


class AlreadyAttached(LeaseError, RuntimeError):
    """An extender was attached while it still serves another message."""

    def __init__(self, message_id: str = "") -> None:
        super().__init__(message_id)
        self.message_id = message_id

    def __str__(self) -> str:
        return f"extender already serves message {self.message_id or '?'}; leave that block first"


class UnsupportedBroker(LeaseError):
    """The broker's transport has no lease driver."""

    def __init__(
        self, transport: str = "", supported: tuple[str, ...] = (), reason: str = ""
    ) -> None:
        super().__init__(transport, supported, reason)
        self.transport = transport
        self.supported = supported
        self.reason = reason

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"no leases on transport {self.transport!r}{why}; drivers exist for: "
            f"{', '.join(self.supported) or 'none'}. Use one of these brokers, or set "
            f"lease_enabled = False to run leased tasks as plain late-ack tasks"
        )
