"""The fields of a log line about a lease, under the same names in every process.

For whoever looks for all that was said of one task, one delivery or one worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

TASK_ID, TASK_NAME, LEASE, TOKEN, WORKER = "task_id", "task_name", "lease", "token", "worker"
NAMES = (TASK_ID, TASK_NAME, LEASE, TOKEN, WORKER)


def of_ticket(ticket: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of what a task process knows of its lease."""
    return {
        TASK_ID: ticket.get("id"),
        TASK_NAME: ticket.get("task"),
        LEASE: ticket.get("tag"),
        TOKEN: ticket.get("token"),
        WORKER: ticket.get("worker"),
    }
