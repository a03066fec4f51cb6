"""What a running task is doing now, for people who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_lease.worker.pools import Pool
    from celery_lease.worker.registry import LeaseRegistry


def stack_of(leases: LeaseRegistry, pool: Pool, task_id: str) -> dict[str, Any]:
    """Return what a task does here, with its Python stack; empty: it does not run here.

    The innermost call comes first. There is no stack where the platform or the process offers none.
    """
    running = [entry for entry in leases.running() if entry.lease.task_id == task_id]
    for entry in running:
        seen = pool.diagnose(entry)
        if leases.knows(entry.lease.claim.tag):  # else the process may do something else by now
            return {
                "task": entry.lease.name,
                "id": task_id,
                "pid": entry.pid,
                "doing": str(seen),
                "stack": seen.stack,
            }
    return {}
