"""Runs a leased task in its task process, and decides whether its outcome counts.

Invariant: no result or error of a run is stored or passed on after its lease is gone, because the
message has another holder by then. In the common case the beat board shows that; only a run that
ends late asks the broker.
"""

from __future__ import annotations

import logging
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from celery import Celery, Task, states
from celery.exceptions import Ignore, TaskRevokedError

from celery_lease.board import Outcome
from celery_lease.core.clock import host_seconds
from celery_lease.core.delivery import Answer
from celery_lease.core.errors import LeaseLost, ShutdownRequested, TaskCancelled
from celery_lease.core.ticket import KEY, Ticket
from celery_lease.task import hooks
from celery_lease.task.checkpoints import ending as checkpoints
from celery_lease.task.confirm import confirm
from celery_lease.task.current import (
    active_context,
    close_progress,
    entered,
    note_confirmed,
    private_context,
    prolong,
    standing,
)
from celery_lease.task.injection import NOTHING, Injection
from celery_lease.task.iterating import loop as iterating
from celery_lease.task.runs import Run, current_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_lease.task.context import ToolContext

logger = logging.getLogger(__name__)

ASYNC_HINT = "call asyncio.run(...) in a plain function"

#: The states for which Celery's main process only acknowledges the message.
ACKNOWLEDGED = frozenset({states.SUCCESS, states.RETRY, states.IGNORED, states.REVOKED})

#: Share of its lease that a run must have left to end without asking the broker, so that storing
#: the result does not outlast the lease.
MARGIN = 0.1
#: The same in seconds, for short leases; at most a third of a lease.
SHORTEST_MARGIN = 2.0
#: The same in seconds where the broker cannot be asked: the run would wait for the keeper, which
#: extends it soon anyway. SQS hides a message for 30 s at first, a tenth of the usual lease.
LONGEST_MARGIN = 10.0


class Discarded(Ignore):
    """The outcome of a run that lost its lease; Celery neither stores nor calls anything for it.

    It carries only a text: it goes to the main process, and an author's exception may not pickle.
    """


class OutOfReach(Discarded):
    """The outcome of a run that could not begin: its process cannot reach its worker's memory."""


class HandedOver(Ignore):
    """The outcome of a run that ended because its worker stops; the message goes back.

    An ``Ignore``, which ``autoretry_for=(Exception,)`` lets pass and Celery logs in one line.
    """


class Cancelled(Ignore):
    """The outcome of a run that ended because it was cancelled; its result is REVOKED."""


class NotStored(Ignore):
    """The outcome of a run whose outcome could not be stored; the message goes back as a loss."""


def run(
    task: Task[Any, Any],
    function: Callable[..., Any],
    injection: Injection,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a task's *function* with its context, under the lease of the message if there is one."""

    def call(context: ToolContext) -> Any:
        filled, named = injection.arguments(args, kwargs, context)
        return _no_coroutine(task, function(*filled, **named))

    run, request = current_run(), task.request
    if run is not None and run.starts(request):
        return run_body(run, request, call)
    # A direct or eager call, or super().run(): inside a leased task it is part of that task.
    given = injection.given(args, kwargs)
    if given is not NOTHING:
        with entered(given):
            return _no_coroutine(task, function(*args, **kwargs))
    with entered(active_context() or private_context(request.id or "")) as context:
        return call(context)


def _no_coroutine(task: Task[Any, Any], result: Any) -> Any:
    """Return a function's result; a coroutine, which a wrapper may return, is an error."""
    if isinstance(result, CoroutineType):
        result.close()
        raise TypeError(
            f"task {task.name} returned a coroutine, which no pool awaits; {ASYNC_HINT}"
        )
    return result


def ticket_of(task: Task[Any, Any]) -> Ticket | None:
    """Return the ticket of the task that runs here, or None."""
    facts: Mapping[str, Any] = task.request.delivery_info or {}
    if KEY in facts:
        return Ticket.from_dict(facts[KEY])
    run = current_run()
    return run.ticket if run is not None and run.task_id == task.request.id else None


def hold(task: Task[Any, Any]) -> None:
    """Make sure that the lease is held before something is sent that ends the run.

    Raises:
        LeaseLost: It is gone.
        TaskCancelled: The task was cancelled.
    """
    context, ticket = active_context(), ticket_of(task)
    if context is None or ticket is None:
        return
    if not may_act(task.app, context, ticket):
        raise LeaseLost(context.task_id)
    if context.cancelled:
        raise TaskCancelled(context.task_id)
    iterating.keep(context)  # now: what is sent may begin at once


def may_update(task_id: str | None) -> bool:
    """Whether the state of a task is the running one's to write, or somebody else's by now.

    Raises:
        LeaseLost: The lease is gone. Not with ``lease_on_lost="continue"``.
    """
    context = active_context()
    if context is not None and task_id in (None, context.task_id) and context.is_lost:
        context.check()
        return False
    return True


def may_act(app: Celery, context: ToolContext, ticket: Ticket) -> bool:
    """Return whether the lease is held; the broker is asked only when it is nearly over."""
    needed = margin(ticket.extension)
    needed = needed if ticket.confirms else min(needed, LONGEST_MARGIN)
    answer = standing(context, needed)
    if answer is not Answer.UNKNOWN:
        return answer is Answer.HELD
    if not ticket.confirms:
        return prolong(context, min(needed, ticket.extension * MARGIN))
    asked_at = host_seconds()
    confirmed = confirm(app, ticket)
    if confirmed:
        note_confirmed(context, asked_at + ticket.extension)
    return confirmed


def margin(extension: float) -> float:
    """Return the seconds of its lease that a run must have left to end without asking."""
    return max(extension * MARGIN, min(SHORTEST_MARGIN, extension / 3))


def run_body(run: Run, request: Any, call: Callable[[ToolContext], Any]) -> Any:
    """Run what a task is for, and return its result while it counts."""
    task, context, ticket = run.task, run.context, run.ticket
    if context.is_lost:  # checked first: later writes could be in another lease's record
        raise _discarded(run, LeaseLost(run.task_id, "gone before the task started"))
    checkpoints.attach(task, request, context)
    if ticket.publishes and _ignores_result(task):  # no result would ever replace its progress
        close_progress(context)
    try:
        try:
            run.enter_body()
            result = call(context)
        except BaseException:
            iterating.keep(context)  # a loop that a traceback still holds
            raise
        finally:
            run.leave_body()
    except Exception as exc:
        _judge(run, exc)
        raise
    if not may_act(task.app, context, ticket):
        raise _discarded(run, None)
    return result


def _judge(run: Run, exc: Exception) -> None:
    """Raise the outcome of a run for an error of a part of it, unless that is the error itself."""
    ticket = run.ticket
    if isinstance(exc, ShutdownRequested):
        logger.info("%s", exc, extra=ticket.fields)
        run.end(Outcome.HANDED_OVER)
        raise HandedOver(str(exc)) from None
    run.leave_body()
    if isinstance(exc, LeaseLost) or not may_act(run.task.app, run.context, ticket):
        raise _discarded(run, exc) from None
    if isinstance(exc, TaskCancelled):
        _revoke(run.task, ticket.fields)
        raise Cancelled(str(exc)) from None
    if isinstance(exc, Ignore):  # there is no outcome to store
        run.end(Outcome.DONE)


def before_start(task: Task[Any, Any], hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a task's own ``before_start`` under its lease: an error in it ends the run."""
    run = current_run()
    if run is None or not run.starts(task.request):
        return hook(*args, **kwargs)
    checkpoints.attach(task, task.request, run.context)
    try:
        return hook(*args, **kwargs)
    except Exception as exc:
        _judge(run, exc)
        raise


def on_retry(task: Task[Any, Any], hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a task's own ``on_retry``: by now the retry is sent, and stored if results are."""
    run = current_run()
    if run is not None and run.task_id == task.request.id:
        run.end(Outcome.DONE)
    return hook(*args, **kwargs)


def outcome_of(task: Task[Any, Any], state: str) -> Outcome:
    """Return the outcome for a stored state; UNREPORTED: Celery's report decides."""
    if state == states.FAILURE:
        return Outcome.DONE if acks_failure(task) else Outcome.REJECTED
    return Outcome.DONE if state in ACKNOWLEDGED else Outcome.UNREPORTED


def acks_failure(task: Any) -> bool:
    """Whether Celery acknowledges a failed run rather than rejects it; 5.7 renamed the option."""
    option = getattr(task, "acks_on_failure", None)
    return bool(task.acks_on_failure_or_timeout if option is None else option)


def _ignores_result(task: Task[Any, Any]) -> bool:
    of_call: bool | None = getattr(task.request, "ignore_result", None)
    return bool(task.ignore_result if of_call is None else of_call)


def _revoke(task: Task[Any, Any], extra: Mapping[str, object]) -> None:
    """Store that a task was revoked, as Celery does before a task's start; call its hooks.

    In this process: the main process may stand still, and an acknowledged outcome must be stored.
    """
    request: Any = task.request
    store = not _ignores_result(task) or task.store_errors_even_if_ignored
    task.backend.mark_as_revoked(request.id, "cancelled", request=request, store_result=store)
    logger.info("task %s[%s] is cancelled", task.name, request.id, extra=extra)
    hooks.call(task, request, states.REVOKED, TaskRevokedError("cancelled"), extra)


def _discarded(run: Run, exc: Exception | None) -> Discarded:
    run.end(Outcome.DISCARDED)
    return discarded(run, exc)


def discarded(run: Run, exc: Exception | None) -> Discarded:
    """Log that the outcome of a run is discarded, and return the exception for that."""
    what = "result" if exc is None else type(exc).__name__
    about, extra = (run.task.name, run.task_id, what), run.ticket.fields
    if run.released:
        logger.warning(
            "task %s[%s] ran on after its worker had ended its lease: its %s is discarded, the "
            "message is run elsewhere",
            *about,
            extra=extra,
        )
    else:
        logger.warning(
            "task %s[%s] lost its lease: its %s is discarded, the message is run elsewhere",
            *about,
            extra=extra,
        )
    return Discarded(f"{what} discarded: lease lost")
