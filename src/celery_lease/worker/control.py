"""Remote control commands of a worker that has leases.

``lease_drain`` and ``lease_resume`` change a worker, ``lease_cancel`` ends tasks of it,
``lease_state``, ``lease_about`` and ``leases`` ask it. They are known to the worker, and to every
``celery`` command, once this module is imported; it imports little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.worker.control import control_command, inspect_command

from celery_lease.worker.about import about

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Arguments of Celery's ``stats`` by which those ask who only want to know which workers have
#: leases; a worker whose main loop is away answers these too.
WHO = {"leases": True}
NO_LEASES = {"error": "this worker has no leased tasks, or lease_enabled is off"}


@control_command()
def lease_drain(state: Any, **_: Any) -> dict[str, Any]:
    """Take no more messages, hand back what has not started, finish what runs, and stay up."""
    drain = getattr(state.consumer, "lease_drain", None)
    if drain is None:
        return NO_LEASES
    drain.begin()
    return {"ok": "draining"}


@control_command()
def lease_resume(state: Any, **_: Any) -> dict[str, Any]:
    """Take messages again after a drain."""
    drain = getattr(state.consumer, "lease_drain", None)
    if drain is None:
        return NO_LEASES
    return {"ok": "taking messages"} if drain.end() else {"error": "the worker is stopping"}


@inspect_command()
def lease_state(state: Any, **_: Any) -> dict[str, Any]:
    """Whether the worker drains or stops, and how many leases it holds."""
    drain = getattr(state.consumer, "lease_drain", None)
    return NO_LEASES if drain is None else drain.state()


@inspect_command(variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
def leases(
    state: Any, task_id: str | Sequence[str] | None = None, **_: Any
) -> list[dict[str, Any]]:
    """List the leases that the worker holds, or those of some tasks."""
    from celery_lease.worker.report import describe  # noqa: PLC0415  (for workers alone)

    held = getattr(state.consumer, "leases", None)
    if held is None:
        return []
    return describe(held, _listed(task_id) or None)


@control_command(variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
def lease_cancel(state: Any, task_id: str | Sequence[str], **_: Any) -> dict[str, Any]:
    """Have tasks told at their next beat that they are cancelled; what waits is revoked."""
    from celery_lease.worker.cancel import Reaction, cancel  # noqa: PLC0415  (for workers alone)

    held = getattr(state.consumer, "leases", None)
    if held is None:
        return NO_LEASES
    is_main = not getattr(state, "lease_stand_in", False)
    done = cancel(held, _listed(task_id), state.consumer if is_main else None)
    here = [each for each, what in done.items() if what["state"] != Reaction.UNKNOWN]
    return {"ok": f"{len(here)} of {len(done)} tasks are here", "tasks": done}


def _listed(task_id: str | Sequence[str] | None) -> list[str]:
    return [task_id] if isinstance(task_id, str) else list(task_id or ())


@inspect_command()
def lease_about(state: Any, **_: Any) -> dict[str, Any]:
    """What the worker is made of: versions, clock, pool, and tasks that were slow to beat."""
    return about(state.consumer)
