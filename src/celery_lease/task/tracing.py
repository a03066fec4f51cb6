"""Wraps Celery's tracer for a leased run: the context exists from acceptance to the last hook.

``Task.__trace__`` is the function that a task process calls for a message: signals, hooks, the
body, its outcome. Read in Celery 5.5.3 and 5.7.0: each pool sets it on the task, and calls it with
id, arguments and the request as a dict; it returns a ``trace_ok_t``, whose ``info`` is None for a
success, and raises errors that the main process has to learn only from the pool.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery import Task, states
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Reject

from celery_lease.board import Outcome
from celery_lease.core.errors import LeaseLost
from celery_lease.core.ticket import KEY, Ticket
from celery_lease.task import outcome, storing
from celery_lease.task.current import WorkerOutOfReach, leased_context
from celery_lease.task.outcome import NotStored
from celery_lease.task.runs import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Tracer = Callable[..., trace_ok_t]

logger = logging.getLogger(__name__)


def _ticket_of(_: str, request: Mapping[str, Any] | None) -> Ticket | None:
    raw = ((request or {}).get("delivery_info") or {}).get(KEY)
    return None if raw is None else Ticket.from_dict(raw)


def leased_tracer(
    task: Task[Any, Any],
    tracer: Tracer,
    ticket_of: Callable[[str, Mapping[str, Any] | None], Ticket | None] = _ticket_of,
) -> Tracer:
    """Return a tracer for a *task* with leases; for messages without a lease it calls *tracer*.

    Args:
        task: The task.
        tracer: Celery's.
        ticket_of: Finds the ticket of a task id and its request.
    """

    @functools.wraps(tracer)
    def trace(
        uuid: str, args: Any, kwargs: Any, request: Mapping[str, Any] | None = None
    ) -> trace_ok_t:
        ticket = ticket_of(uuid, request)
        if ticket is None:
            return tracer(uuid, args, kwargs, request)
        return _trace(task, ticket, tracer, uuid, args, kwargs, request)

    return trace


def _trace(
    task: Task[Any, Any], ticket: Ticket, tracer: Tracer, task_id: str, *facts: Any
) -> trace_ok_t:
    try:
        context = leased_context(ticket, task_id)
    except WorkerOutOfReach as exc:  # the main process logs it, once for all tasks
        return _ended(outcome.OutOfReach(exc.reason))
    except LeaseLost as exc:
        text = "task %s[%s] not started: its lease is gone (%s)"
        logger.info(text, task.name, task_id, exc.reason, extra=ticket.fields)
        return _ended(outcome.Discarded("not started: its lease is gone"))
    run = Run(task, context, ticket)
    with run:
        try:
            storing.guard(task.backend)
            traced = tracer(task_id, *facts)
        except storing.GivenUp:
            return _ended(_void(run))
        except (MemoryError, Reject):
            raise
        except Exception as exc:
            if run.is_over:  # an error of a hook
                raise
            logger.exception(
                "task %s[%s]: its outcome cannot be stored",
                task.name,
                task_id,
                extra=ticket.fields,
            )
            run.end(Outcome.NOT_STORED)
            return _ended(NotStored(f"result not stored: {type(exc).__name__}"))
        if not run.is_over:
            state = states.SUCCESS if traced.info is None else traced.info.state
            run.end(outcome.outcome_of(task, state))
    return traced


def _void(run: Run) -> Exception:
    """Log the end of a run whose outcome was not stored, and return the exception for it."""
    if run.outcome is Outcome.DISCARDED:
        return outcome.discarded(run, None)
    logger.error(
        "task %s[%s] has ended, and its outcome could not be stored in time: its message is "
        "returned to its queue",
        run.task.name,
        run.task_id,
        extra=run.ticket.fields,
    )
    return NotStored("result not stored in time")


def _ended(exc: Exception) -> trace_ok_t:
    """Return a tracer's result for a run without an outcome."""
    try:
        raise exc
    except type(exc):
        return trace_ok_t(ExceptionInfo(internal=True), TraceInfo(states.IGNORED, exc), 0.0, None)
