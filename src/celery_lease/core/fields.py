"""The fields of a log line about a lease, under the same names in every process.

They allow a search for all lines about one task, one delivery or one worker.
"""

from __future__ import annotations

TASK_ID, TASK_NAME, LEASE, TOKEN, WORKER = "task_id", "task_name", "lease", "token", "worker"
NAMES = (TASK_ID, TASK_NAME, LEASE, TOKEN, WORKER)


def of_lease(
    task_id: object, task_name: object, lease: object, token: object, worker: object
) -> dict[str, object]:
    """Return the fields of a line about one lease."""
    return dict(zip(NAMES, (task_id, task_name, lease, token, worker), strict=True))
