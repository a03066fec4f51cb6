"""Remote control commands of a worker that has leases.

``lease_drain`` and ``lease_resume`` change a worker, ``lease_cancel`` and ``lease_hand_over`` end
its tasks, ``lease_state``, ``lease_about``, ``leases`` and ``lease_stack`` query it. The worker and
every ``celery`` command know them once this module is imported; it imports little.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from celery.worker.control import control_command, inspect_command

from celery_lease.core.words import counted
from celery_lease.worker.telemetry.about import about, identity, paces, runtime_of

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Arguments of Celery's ``stats`` in a query for workers with leases; a worker whose main loop is
#: blocked answers it, too.
WHO = {"leases": True}
NO_LEASES = {"error": "this worker has no leased tasks, or lease_enabled is off"}


@control_command()
def lease_drain(state: Any, **_: Any) -> dict[str, Any]:
    """Take no more messages, requeue reserved ones, finish running tasks, and stay up."""
    runtime = runtime_of(state.consumer)
    if runtime is None:
        return NO_LEASES
    runtime.drain.begin()
    return {"ok": "draining", "worker": identity(state.consumer)}


@control_command()
def lease_resume(state: Any, **_: Any) -> dict[str, Any]:
    """Take messages again after a drain."""
    runtime = runtime_of(state.consumer)
    if runtime is None:
        return NO_LEASES
    done = {"ok": "taking messages"} if runtime.drain.end() else {"error": "the worker is stopping"}
    return {**done, "worker": identity(state.consumer)}


@inspect_command()
def lease_state(state: Any, **_: Any) -> dict[str, Any]:
    """Whether the worker drains or stops, and how many leases it holds."""
    from celery_lease.worker import telemetry  # noqa: PLC0415  (for workers alone)

    runtime = runtime_of(state.consumer)
    if runtime is None:
        return NO_LEASES
    lags = [each.keeper_lag() for each in telemetry.running() if each.leases is runtime.leases]
    lag = {"keeper_lag": round(max(0.0, lags[0]), 3)} if lags else {}
    return {**runtime.drain.state(), **lag, "worker": identity(state.consumer)}


@inspect_command(variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
def leases(
    state: Any, task_id: str | Sequence[str] | None = None, **_: Any
) -> list[dict[str, Any]]:
    """List the leases that the worker holds, or those of some tasks."""
    from celery_lease.worker.telemetry.report import describe  # noqa: PLC0415  (for workers alone)

    runtime = runtime_of(state.consumer)
    if runtime is None:
        return []
    return describe(runtime.leases, _listed(task_id) or None)


@control_command(variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
def lease_cancel(state: Any, task_id: str | Sequence[str], **_: Any) -> dict[str, Any]:
    """Cancel tasks: their next beat raises TaskCancelled; those that wait are revoked."""
    from celery_lease.worker.cancel import Reaction, cancel  # noqa: PLC0415  (for workers alone)

    runtime = runtime_of(state.consumer)
    if runtime is None:
        return NO_LEASES
    is_main = not hasattr(state, "lease_heard_at")
    done = cancel(runtime.leases, _listed(task_id), state.consumer if is_main else None)
    here = [each for each, what in done.items() if what["state"] != Reaction.UNKNOWN]
    return {
        "ok": f"{len(here)} of {len(done)} {'task is' if len(done) == 1 else 'tasks are'} here",
        "tasks": done,
        "worker": identity(state.consumer),
    }


@control_command(variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
def lease_hand_over(state: Any, task_id: str | Sequence[str], **_: Any) -> dict[str, Any]:
    """End interruptible tasks at their next beat; their messages are requeued."""
    from celery_lease.worker.hand_over import hand_over  # noqa: PLC0415  (for workers alone)

    runtime = runtime_of(state.consumer)
    if runtime is None:
        return NO_LEASES
    heard_at = getattr(state, "lease_heard_at", math.inf)
    done = hand_over(runtime.leases, _listed(task_id), heard_at)
    flagged = sum(what["state"] == "told" for what in done.values())
    return {
        "ok": f"{flagged} of {counted(len(done), 'task')} handed over",
        "tasks": done,
        "worker": identity(state.consumer),
    }


@inspect_command(args=[("task_id", str)], signature="task_id")
def lease_stack(state: Any, task_id: str, **_: Any) -> dict[str, Any]:
    """Show what a running task is doing, with its Python stack.

    To see whether it uses the processor takes 0.2 s, and a stack up to 0.5 s; the worker's main
    loop waits meanwhile.
    """
    from celery_lease.worker.stacks import stack_of  # noqa: PLC0415  (for workers alone)

    runtime = runtime_of(state.consumer)
    seen = {} if runtime is None else stack_of(runtime.leases, runtime.pool, str(task_id))
    return {**seen, "worker": identity(state.consumer)} if seen else {}


def _listed(task_id: str | Sequence[str] | None) -> list[str]:
    return [task_id] if isinstance(task_id, str) else list(task_id or ())


@inspect_command()
def lease_about(state: Any, pace: bool = False, **_: Any) -> dict[str, Any]:
    """Show the worker's versions, clock and pool, and the tasks that were slow to beat.

    With *pace* also how its tasks beat and how long they ran; an older worker leaves that out.
    """
    facts = about(state.consumer)
    return {**facts, "paces": paces(state.consumer)} if pace else facts
