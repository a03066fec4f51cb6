"""What a running task is doing now, for people who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_lease.worker.leases import Leases
    from celery_lease.worker.pools import Pool


def stack_of(leases: Leases, pool: Pool, task_id: str) -> dict[str, Any]:
    """Return what a task does here, with its Python stack; empty: it does not run here.

    The innermost call comes first. There is no stack where the platform or the process offers none.
    """
    running = [held for held in leases.running() if held.lease.task_id == task_id]
    for held in running:
        seen = pool.diagnose(held)
        if leases.knows(held.lease.claim.tag):  # else the process may do something else by now
            return {
                "task": held.lease.name,
                "id": task_id,
                "pid": held.pid,
                "doing": str(seen),
                "stack": seen.stack,
            }
    return {}
