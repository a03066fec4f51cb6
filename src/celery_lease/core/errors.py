"""The errors of celery-lease.

::

    LeaseError
    ├── LeaseLost                  the lease is gone; stop side effects now
    ├── ShutdownRequested          the worker stops; save what is needed and return
    ├── TaskCancelled              this task was cancelled: clean up and return
    ├── TooManyDeliveries          the message was lost too often and is dead-lettered
    ├── ReceiptHandleExpiredError  the broker no longer knows this receipt
    ├── AlreadyAttached            (also RuntimeError) an extender serves one message at a time
    ├── UnsupportedBroker          the transport has no lease driver
    ├── UnsupportedOperation       the broker cannot do what its driver was asked for
    └── LeaseConfigError           (also ImproperlyConfigured) in :mod:`celery_lease.settings`

An error keeps its facts as attributes and hands them to ``Exception.__init__`` in order, so that it
survives the pickling between task process, worker and result backend.
"""

from __future__ import annotations

from celery_lease.core.words import counted, page


class LeaseError(Exception):
    """Root of all errors raised by celery-lease."""


class LeaseLost(LeaseError):
    """The lease on this task's message is gone: it expired or another delivery holds it.

    Stop side effects at once and let the error pass: the message runs elsewhere, and the outcome of
    this run is discarded. It is raised again at every further beat.

    Attributes:
        task_id: The task.
        reason: The reason of the loss.
        stood_still: Seconds for which the worker's main process did not run, so that no beat could
            extend the lease; 0.0: it ran.
    """

    def __init__(
        self, task_id: str = "", reason: str = "expired", stood_still: float = 0.0
    ) -> None:
        super().__init__(task_id, reason, *([stood_still] if stood_still else []))
        self.task_id = task_id
        self.reason = reason
        self.stood_still = stood_still

    def __str__(self) -> str:
        text = f"lease of task {self.task_id or '?'} lost: {self.reason}"
        if self.stood_still:
            text += f"; the worker's process stood still for {self.stood_still:.1f} s"
        return text


class ShutdownRequested(LeaseError):
    """The worker stops, or hands over this task: save the state and let the error pass."""

    def __init__(self, task_id: str = "") -> None:
        super().__init__(task_id)
        self.task_id = task_id

    def __str__(self) -> str:
        return f"task {self.task_id or '?'} is handed over"


class TaskCancelled(LeaseError):
    """The task was cancelled: clean up and let the error pass.

    Its state becomes REVOKED, its message is acknowledged, and no callback is called. It is raised
    again at every further beat; the lease is kept for ``lease_extension`` from the first time on.
    If the task catches it and returns, it has completed with its result.
    """

    def __init__(self, task_id: str = "") -> None:
        super().__init__(task_id)
        self.task_id = task_id

    def __str__(self) -> str:
        return f"task {self.task_id or '?'} was cancelled"


class TooManyDeliveries(LeaseError):
    """Too many deliveries of a message were lost; it went to the dead-letter queue."""

    def __init__(self, task_id: str = "", losses: int = 0, queue: str = "") -> None:
        super().__init__(task_id, losses, queue)
        self.task_id = task_id
        self.losses = losses
        self.queue = queue

    def __str__(self) -> str:
        return (
            f"task {self.task_id or '?'}: "
            f"{counted(self.losses, 'delivery', 'deliveries')} ended by loss, "
            f"message moved to queue {self.queue!r}"
        )


class ReceiptHandleExpiredError(LeaseError):
    """The broker no longer knows this delivery: it was settled, or has another holder."""

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


class UnsupportedOperation(LeaseError):
    """The broker does not support an operation of its driver; check ``capabilities`` before."""

    def __init__(self, broker: str = "", operation: str = "") -> None:
        super().__init__(broker, operation)
        self.broker = broker
        self.operation = operation

    def __str__(self) -> str:
        return (
            f"the {self.broker} driver has no {self.operation}(): its broker cannot do that. Ask "
            f"driver.capabilities first; what each broker can do: {page('brokers')}"
        )
