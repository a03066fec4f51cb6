"""A loop that resumes, for tests of it, and a store that can be broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_lease.task.checkpoints import Checkpoints
from celery_lease.task.checkpoints.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_lease import ToolContext
    from celery_lease.testing import RecordedContext

ROWS = range(1, 21)


def rows_after(last: int | None) -> Iterator[int]:
    """Give out the rows after a cursor."""
    return iter(range((last or 0) + 1, 21))


def loop(context: ToolContext, **options: Any) -> Iterator[int]:
    """Return the loop of these tests."""
    return context.iterate(rows_after, cursor=lambda row: row, **options)


def text_of(context: RecordedContext) -> str:
    """Return what is stored."""
    return str(context._store._text)


class Flaky(MemoryStore):
    """A store that does not answer for a while."""

    name = "flaky"
    broken = False
    saves = 0

    def save(self, task_id: str, token: int, text: str) -> bool:
        self.saves += 1
        if self.broken:
            raise OSError("no route to host")
        return super().save(task_id, token, text)


def with_store(context: RecordedContext, store: MemoryStore) -> RecordedContext:
    """Let a context keep its checkpoints there."""
    context._checkpoints = Checkpoints("test", find=lambda: store)
    return context
