"""The heartbeat of a task's context, for code that takes a heartbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from celery_lease.core.heartbeat import Heartbeat

if TYPE_CHECKING:
    from celery_lease.task.context import ToolContext

#: Why neither of the two can be pickled, and the remedy.
NOT_SENT = (
    "a ToolContext cannot be sent to another process: the lease is this process's. Call "
    "context.beat() here while the child works, such as for each result that comes from it; or "
    "fork the child, which inherits the context (multiprocessing's start method 'fork'; as an "
    "argument of Process, not through a pool or a queue)"
)


class ContextHeartbeat(Heartbeat):
    """A heartbeat whose beats are the context's."""

    def __init__(self, context: ToolContext) -> None:
        super().__init__()
        self._context = context

    def beat(self) -> None:
        """Beat for the lease, then call the callbacks."""
        self._context.beat()

    def __reduce__(self) -> NoReturn:
        raise TypeError(NOT_SENT)

    def count(self) -> None:
        """Count a beat of the context; its time is on the board."""
        self._beats += 1
        if self._callbacks:
            self._notify(self._callbacks)

    def elapsed(self) -> float:
        return self._context.elapsed
