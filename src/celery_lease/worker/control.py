"""Remote control commands of a worker that has leases.

``lease_drain`` and ``lease_resume`` change a worker, ``lease_state`` asks it. They are known to
the worker, and to every ``celery`` command, once this module is imported; it imports little.
"""

from __future__ import annotations

from typing import Any

from celery.worker.control import control_command, inspect_command

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
