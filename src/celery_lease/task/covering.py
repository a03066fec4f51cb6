"""Runs undecorated tasks under leases, in their task processes: ``lease_tasks`` names them.

Of a late-acknowledged task the main process sends the pool :func:`trace` instead of Celery's own
function, with the ticket beside its arguments: nothing has to be imported by the app, and what a
task sees of its request, and copies into its retry, has no ticket in it. At the first message of a
task its instance in this process is covered: ``run`` and what else a lost lease must stop go
through :mod:`.outcome`. Its class, its ``__call__``, its checks of arguments and its hooks are left
alone.

Of an early-acknowledged one it sends :func:`start`, and the task is Celery's alone.

Read in Celery 5.5.3 and 5.7.0: a pool calls ``fast_trace_task`` or ``trace_task_ret`` with the
task's name first; these call ``__trace__`` of the task, which Celery sets anew on the instance when
it connects; a tracer takes ``task.run`` when it is built.
"""

from __future__ import annotations

import functools
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery import Task, current_app
from celery.app import trace as celery_trace
from celery.utils.imports import symbol_by_name

from celery_lease.board import Board, Slot, granting
from celery_lease.core.ticket import Ticket
from celery_lease.task import hooks, outcome
from celery_lease.task.runs import current_run
from celery_lease.task.tracing import leased_tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Around = Callable[..., Any]

NOT_STARTED = "not started: its lease is gone"
#: What makes a task process ready; named by a string, as it is no part of a task.
ENTER = "celery_lease.installation:enter_process"
_COVERED = "_lease_covered"
#: Guards nothing but that a task is covered once: threads of a pool share it.
_lock = threading.Lock()
#: What the main process sent with the message that this thread or greenlet is about to run.
_ticket: ContextVar[Ticket | None] = ContextVar("celery_lease_covered", default=None)


def trace(ticket: Mapping[str, Any], target: Callable[..., Any], name: str, *args: Any) -> Any:
    """Call *target*, Celery's function that runs the task of a name, under a lease."""
    cover(_task(target, name))
    token = _ticket.set(Ticket.from_dict(ticket))
    try:
        return target(name, *args)
    finally:
        _ticket.reset(token)


def start(ticket: Mapping[str, Any], target: Callable[..., Any], name: str, *args: Any) -> Any:
    """Call *target* once the main process has acknowledged the message of an early task.

    Returns:
        What *target* does; or, if it must not start, as that does of a run that came to nothing.
    """
    facts = Ticket.from_dict(ticket)
    try:
        granted = granting.wait(Board.at(facts.board), Slot(facts.slot, facts.generation))
    except OSError as exc:  # the main process logs it, once for all tasks
        return nothing(outcome.OutOfReach(f"the worker's memory is gone ({exc})"))
    return target(name, *args) if granted else nothing(outcome.Discarded(NOT_STARTED))


def nothing(why: outcome.Discarded) -> tuple[int, Any, float]:
    """Return what Celery's functions do of a run that came to nothing."""
    return 1, hooks.raised(why), 0.0


def cover(task: Task[Any, Any]) -> None:
    """Let the runs of a task in this process have leases; safe to repeat."""
    if _is_covered(task.__trace__):
        return
    with _lock:
        tracer: Any = task.__trace__
        if _is_covered(tracer):
            return
        symbol_by_name(ENTER)()
        if not _is_covered(task.run):
            for name, around in AROUND.items():
                setattr(task, name, _covered(task, getattr(task, name), around))
            tracer = None  # built with the former run
        tracer = leased_tracer(task, tracer or _tracer(task), _sent)
        setattr(tracer, _COVERED, True)
        task.__trace__ = tracer


def _task(target: Callable[..., Any], name: str) -> Task[Any, Any]:
    """Return the task that Celery's function will call."""
    if target is celery_trace.fast_trace_task:
        found: Task[Any, Any] = celery_trace._localized[0][name]  # type: ignore[attr-defined]  # noqa: SLF001
        return found
    return current_app.tasks[name]


def _tracer(task: Task[Any, Any]) -> Any:
    known: list[Any] = celery_trace._localized  # type: ignore[attr-defined]  # noqa: SLF001
    hostname = known[2] if known else None
    return celery_trace.build_tracer(task.name, task, task.app.loader, hostname, app=task.app)


def _sent(task_id: str, _: object) -> Ticket | None:
    ticket = _ticket.get()
    return ticket if ticket is not None and ticket.id == str(task_id) else None


def _is_covered(call: object) -> bool:
    return bool(getattr(call, _COVERED, False))


def _covered(task: Task[Any, Any], call: Callable[..., Any], around: Around) -> Any:
    @functools.wraps(call)
    def covered(*args: Any, **kwargs: Any) -> Any:
        return around(task, call, *args, **kwargs)

    setattr(covered, _COVERED, True)
    return covered


def _run(task: Task[Any, Any], call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a task's own ``run``; a call by another task is that one's work."""
    run, request = current_run(), task.request
    if run is None or not run.starts(request):
        return call(*args, **kwargs)
    return outcome.run_body(run, request, lambda _: call(*args, **kwargs))


def _hold(task: Task[Any, Any], call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Send what ends the run, a retry for one, while the lease is held."""
    outcome.hold(task)
    return call(*args, **kwargs)


def _update_state(_: Any, call: Any, /, task_id: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Store a state while the lease is held; it is its new holder's then."""
    return call(task_id, *args, **kwargs) if outcome.may_update(task_id) else None


#: What of a task goes through its lease.
AROUND: Mapping[str, Around] = {
    "run": _run,
    "retry": _hold,
    "replace": _hold,
    "update_state": _update_state,
    "before_start": outcome.before_start,
    "on_retry": outcome.on_retry,
}
