"""Runs a leased task in its task process, and decides whether what came of it counts.

Invariant: nothing that a run returns or raises is stored or passed on after its lease is gone,
because the message is somebody else's by then. Known from the beat board in the common case; only
a run that ends late asks the broker.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import signals, states
from celery.exceptions import Ignore

from celery_lease.checkpoints import ending as checkpoints
from celery_lease.confirm import confirm
from celery_lease.core import fields
from celery_lease.core.board import Outcome
from celery_lease.core.delivery import Answer
from celery_lease.core.errors import LeaseLost, ShutdownRequested, TaskCancelled
from celery_lease.current import (
    active_context,
    close_progress,
    entered,
    leased_context,
    private_context,
    prolong,
    standing,
)
from celery_lease.injection import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery, Task

    from celery_lease.context import ToolContext
    from celery_lease.injection import Injection

logger = logging.getLogger(__name__)

#: Where a request carries its run's context: two runs of one id may share a process.
ATTRIBUTE = "lease_context"

#: States whose message Celery's main process acknowledges, and nothing else.
ACKNOWLEDGED = frozenset({states.SUCCESS, states.RETRY, states.IGNORED})

#: A run that ends with less than this share of its lease left asks the broker first, so that
#: storing the result does not outlast the lease.
MARGIN = 0.1
#: The same in seconds, for short leases, of which it takes no more than a third.
SHORTEST_MARGIN = 2.0


class Discarded(Ignore):
    """The outcome of a run that lost its lease; Celery stores nothing and calls nothing for it.

    Carries a text only: it goes to the main process, and an author's exception may not pickle.
    """


class HandedOver(Ignore):
    """The outcome of a run that ended because its worker stops; the message goes back.

    An ``Ignore``, which ``autoretry_for=(Exception,)`` lets pass and Celery logs in one line.
    """


class Cancelled(Ignore):
    """The outcome of a run that ended because it was cancelled; its result is REVOKED."""


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
        with entered(context):
            return function(*filled, **named)

    ticket, outer = ticket_of(task), active_context()
    if ticket is not None and not _runs_in(outer, task):
        return _run_leased(task, ticket, call)
    # A direct or eager call, or super().run(): inside a leased task it is that one's work going on.
    given = injection.given(args, kwargs)
    if given is not NOTHING:
        with entered(given):
            return function(*args, **kwargs)
    return call(outer or private_context(task.request.id or ""))


def ticket_of(task: Task[Any, Any]) -> dict[str, Any] | None:
    """Return what the worker's main process wrote for the task that runs here, if it did."""
    facts: Mapping[str, Any] = task.request.delivery_info or {}
    return facts.get("lease")


def may_act(app: Celery, context: ToolContext, ticket: Mapping[str, Any]) -> bool:
    """Tell whether the lease is held, asking the broker only when it is as good as over."""
    answer = standing(context, margin(ticket["extension"]))
    if answer is not Answer.UNKNOWN:
        return answer is Answer.HELD
    if not ticket.get("confirms", True):
        return prolong(context, ticket["extension"] * MARGIN)
    return confirm(app, ticket)


def margin(extension: float) -> float:
    """Return how many seconds of its lease a run must have left to end without asking."""
    return max(extension * MARGIN, min(SHORTEST_MARGIN, extension / 3))


def _runs_in(outer: ToolContext | None, task: Task[Any, Any]) -> bool:
    return outer is not None and outer.leased and outer.task_id == task.request.id


def _run_leased(
    task: Task[Any, Any], ticket: dict[str, Any], call: Callable[[ToolContext], Any]
) -> Any:
    try:
        context = leased_context(ticket, task.request.id or "")
    except LeaseLost as exc:
        raise _discarded(task, exc, ticket) from None
    checkpoints.attach(task, context)
    _watch(task, context)
    if _ignores_result(task):  # also its progress: nothing would ever overwrite that
        close_progress(context)
    try:
        if context.cancelled:  # while it waited for a process
            raise TaskCancelled(context.task_id)  # noqa: TRY301
        try:
            result = call(context)
        finally:
            close_progress(context)
    except ShutdownRequested as exc:
        logger.info("%s", exc, extra=fields.of_ticket(ticket))
        raise HandedOver(str(exc)) from None
    except TaskCancelled as exc:
        if not may_act(task.app, context, ticket):
            raise _discarded(task, exc, ticket) from None
        _revoke(task, fields.of_ticket(ticket))
        raise Cancelled(str(exc)) from None
    except Exception as exc:
        if isinstance(exc, LeaseLost) or not may_act(task.app, context, ticket):
            raise _discarded(task, exc, ticket) from None
        raise
    if not may_act(task.app, context, ticket):
        raise _discarded(task, None, ticket)
    return result


def _watch(task: Task[Any, Any], context: ToolContext) -> None:
    """Have the board say how the run ended, once Celery has stored what came of it.

    The main process learns it from its pool, except while it stands still in a shutdown. The
    receiver is connected by the first leased run, so that other processes do not pay for it.
    """
    setattr(task.request, ATTRIBUTE, context)
    signals.task_postrun.connect(_tell, dispatch_uid=f"{__name__}.tell")


def _tell(sender: Any = None, state: str = "", retval: object = None, **_: Any) -> None:
    context: ToolContext | None = getattr(sender.request, ATTRIBUTE, None)
    if context is not None:
        context.end(_told(sender, state, retval))


def _told(task: Any, state: str, retval: object) -> Outcome:
    """Return what a state that is stored means for the message; UNTOLD: Celery has to say."""
    if isinstance(retval, Discarded):
        return Outcome.DISCARDED
    if isinstance(retval, HandedOver):
        return Outcome.HANDED_OVER
    acknowledged = state in ACKNOWLEDGED or (state == states.FAILURE and acks_failure(task))
    return Outcome.DONE if acknowledged else Outcome.UNTOLD


def acks_failure(task: Any) -> bool:
    """Whether a failed run is acknowledged rather than rejected; 5.7 renamed the option."""
    option = getattr(task, "acks_on_failure", None)
    return bool(task.acks_on_failure_or_timeout if option is None else option)


def _ignores_result(task: Task[Any, Any]) -> bool:
    of_call: bool | None = getattr(task.request, "ignore_result", None)
    return bool(task.ignore_result if of_call is None else of_call)


def _revoke(task: Task[Any, Any], extra: Mapping[str, object]) -> None:
    """Store that a task was revoked, as Celery does for one that had not started.

    Here, and not in the main process, which may stand still: what is acknowledged has been stored.
    """
    request: Any = task.request
    store = not _ignores_result(task) or task.store_errors_even_if_ignored
    try:
        task.backend.mark_as_revoked(request.id, "cancelled", request=request, store_result=store)
    except Exception:  # it ends all the same; whoever waits for its result has to be told otherwise
        text = "task %s[%s] cancelled, but not so stored"
        logger.exception(text, task.name, request.id, extra=extra)
    logger.info("task %s[%s] ended, being cancelled", task.name, request.id, extra=extra)


def _discarded(task: Task[Any, Any], exc: Exception | None, ticket: Mapping[str, Any]) -> Discarded:
    what = "result" if exc is None else type(exc).__name__
    logger.warning(
        "task %s[%s] lost its lease: its %s is discarded, the message is run elsewhere",
        task.name,
        task.request.id,
        what,
        extra=fields.of_ticket(ticket),
    )
    return Discarded(f"{what} discarded: lease lost")
