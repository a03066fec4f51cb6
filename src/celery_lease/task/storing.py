"""Stores the outcome of a leased run, with retries for as long as the lease is held.

Celery gives up when a result backend is away, and acknowledges the message nevertheless: the work
is done, but its result is lost. Under a lease the message waits for the backend; the living process
keeps the lease meanwhile, within ``lease_max_duration`` (see :mod:`.board.spans`).

Uses of Celery internals, as read in 5.5.3 and 5.7.0, each with a test that notices a change:

* ``celery.app.trace`` stores by ``task.backend``: ``mark_as_done``, ``mark_as_failure`` and
  ``mark_as_retry``; these use ``store_result`` and ``on_chord_part_return`` of the same object.
* It does not catch an error there that is no ``Exception``.
* Backends with retries of their own call their ``_sleep`` or ``on_connection_error`` between two
  attempts, while the error is being handled.
* The sender of a task first calls ``on_task_call`` of its backend; with greenlets, Redis's listens.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery import states
from celery.exceptions import BackendStoreError
from kombu.exceptions import OperationalError

from celery_lease.board import Outcome
from celery_lease.board.spans import Span
from celery_lease.core.clock import host_seconds
from celery_lease.core.secrets import masked
from celery_lease.core.words import counted
from celery_lease.task import outcome
from celery_lease.task.current import must_give_up
from celery_lease.task.runs import Run, current_run

if TYPE_CHECKING:
    from collections.abc import Callable


logger = logging.getLogger(__name__)

#: Seconds between two attempts: the first, and the longest; each is twice the one before.
SHORTEST_WAIT, LONGEST_WAIT = 0.1, 2.0
#: Seconds between two looks at the lease meanwhile.
LOOK_INTERVAL = 0.25
#: The names that PEP 249 gives to the errors of an unreachable database; the classes of Django,
#: SQLAlchemy and the drivers have no other base in common.
AWAY = frozenset({"OperationalError", "InterfaceError"})

#: The methods that store an outcome, and the states that they store.
MARKS = {
    "mark_as_done": states.SUCCESS,
    "mark_as_failure": states.FAILURE,
    "mark_as_retry": states.RETRY,
    "mark_as_revoked": states.REVOKED,
}
#: The calls of these to the backend's server, each retried by itself.
STEPS = ("store_result", "on_chord_part_return")
#: The methods that a backend with retries of its own calls in between.
PAUSES = ("_sleep", "on_connection_error")
_GUARDED = "_lease_guarded"
#: Outcomes of runs for which nothing is stored any more.
VOID = frozenset({Outcome.DISCARDED, Outcome.NOT_STORED})

#: Makes sure that a backend is guarded once, as threads may share it; guards nothing else.
_lock = threading.Lock()


class GivenUp(BaseException):
    """Ends Celery's tracing of a run whose outcome must not be stored any more.

    It is no ``Exception``: Celery's tracer would try to store that, and a chord would swallow it.
    """


def guard(backend: Any) -> None:
    """Make *backend* store the outcomes of leased runs for as long as their leases are held.

    Once for each backend object. Calls for anything but the outcome of the current run in the
    calling thread are passed through.
    """
    if getattr(backend, _GUARDED, False):
        return
    with _lock:
        if getattr(backend, _GUARDED, False):
            return
        for name in STEPS:
            setattr(backend, name, _step(backend, getattr(backend, name)))
        for name in PAUSES:
            if hasattr(backend, name):
                setattr(backend, name, _pause(name, getattr(backend, name)))
        backend.on_task_call = _unless_own(backend.on_task_call)
        for name, state in MARKS.items():
            setattr(backend, name, _mark(backend, getattr(backend, name), state))
        setattr(backend, _GUARDED, True)


def _storing_run() -> Run | None:
    """Return the run whose outcome, or whose start, is being stored in this thread."""
    run = current_run()
    return None if run is None or run.is_over or run.span is Span.BODY else run


def _step(backend: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def step(*args: Any, **kwargs: Any) -> Any:
        run = _storing_run()
        if run is None or run.goes_on:
            return call(*args, **kwargs)
        return _insist(run, backend, functools.partial(call, *args, **kwargs))

    return step


def _pause(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def pause(*args: Any, **kwargs: Any) -> Any:
        run, exc = _storing_run(), sys.exc_info()[1]
        if run is not None:
            if run.goes_on and exc is not None:
                raise exc
            _failed(run, exc)
            _check(run, failed=True)
        elif name == "_sleep":
            return call(*args, **kwargs)
        # The former sleeps itself; the latter returns the seconds that its caller sleeps: kombu, by
        # a ``sleep`` imported before gevent or eventlet replaced it. That would stop all greenlets,
        # those that keep the leases included.
        seconds = args[0] if name == "_sleep" else call(*args, **kwargs)
        if run is not None:
            _rest(run, seconds)
        else:
            threading.Event().wait(seconds)
        return None if name == "_sleep" else 0

    return pause


def _unless_own(call: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a run that sends its own retry from listening for the result at the backend."""

    @functools.wraps(call)
    def on_task_call(producer: Any, task_id: str) -> Any:
        run = current_run()
        return None if run is not None and run.task_id == task_id else call(producer, task_id)

    return on_task_call


def _mark(backend: Any, call: Callable[..., Any], state: str) -> Callable[..., Any]:
    @functools.wraps(call)
    def mark(task_id: str, *args: Any, **kwargs: Any) -> Any:
        run = current_run()
        if run is None or run.context.task_id != task_id or run.span is Span.BODY:
            return call(task_id, *args, **kwargs)
        if run.outcome in VOID:  # Celery would store its next attempt as a failure
            raise GivenUp
        run.leave_body()
        if state == states.RETRY:
            done = _retried(run, backend, functools.partial(call, task_id, *args, **kwargs))
        else:
            done = call(task_id, *args, **kwargs)
        if run.outcome in VOID:  # GivenUp was swallowed
            raise GivenUp
        run.end(outcome.outcome_of(run.task, state))
        return done

    return mark


def _retried(run: Run, backend: Any, call: Callable[[], Any]) -> Any:
    """Store that a run is retried, in one attempt: its next message is at the broker already.

    That message is the run's outcome: it must not wait for a state, and not be sent twice. The
    state would also come too late if the next run had ended by then.
    """
    run.goes_on = True
    try:
        return call()
    except Exception as exc:
        if not may_pass(backend, exc):
            raise
        text = "task %s[%s] is retried, but the result backend does not store that (%s: %s)"
        extra = run.ticket.fields
        what = type(exc).__name__
        logger.warning(text, run.task.name, run.task_id, what, exc, extra=extra)
        return None


def _insist(run: Run, backend: Any, call: Callable[[], Any]) -> Any:
    """Repeat one step of storing an outcome until it succeeds.

    Raises:
        GivenUp: The lease is gone, or the time is over.
    """
    wait = SHORTEST_WAIT
    _check(run)
    while True:
        try:
            done = call()
        except SoftTimeLimitExceeded:
            run.in_haste = True
            raise
        except Exception as exc:
            if not may_pass(backend, exc):
                raise
            _failed(run, exc)
        else:
            _succeeded(run)
            return done
        _check(run, failed=True)
        _rest(run, wait)
        wait = min(2 * wait, LONGEST_WAIT)


def _rest(run: Run, seconds: float) -> None:
    """Wait before the next attempt, for as long as one is possible."""
    ends, rest = host_seconds() + seconds, threading.Event()
    try:
        while (left := ends - host_seconds()) > 0:
            rest.wait(min(left, LOOK_INTERVAL))
            _check(run)
    except SoftTimeLimitExceeded:
        run.in_haste = True
        raise


def _check(run: Run, *, failed: bool = False) -> None:
    """Check that a run may go on to store its outcome.

    Raises:
        GivenUp: The lease is gone, or an attempt has failed and the time is over.
    """
    if (failed and run.in_haste) or (run.tries and must_give_up(run.context)):
        give_up(run, Outcome.NOT_STORED)
    if not outcome.may_act(run.task.app, run.context, run.ticket):
        give_up(run, Outcome.DISCARDED)


def may_pass(backend: Any, exc: Exception) -> bool:
    """Whether an error of a result backend means that its server is away, and no other fault."""
    if isinstance(exc, BackendStoreError):  # Celery's, after its own attempts
        cause = exc.__cause__ or exc.__context__
        return isinstance(cause, Exception) and may_pass(backend, cause)
    return (
        isinstance(exc, (OSError, OperationalError))
        or bool(backend.exception_safe_to_retry(exc))
        or isinstance(exc, tuple(getattr(backend, "connection_errors", ())))
        or any(cls.__name__ in AWAY for cls in type(exc).__mro__)
    )


def give_up(run: Run, how: Outcome) -> None:
    """End a run without a stored outcome.

    Raises:
        GivenUp: Always.
    """
    run.end(how)
    raise GivenUp


def _failed(run: Run, exc: BaseException | None) -> None:
    """Log once a run that its outcome is not stored yet."""
    if not run.failed_to_store():
        return
    logger.warning(
        "task %s[%s] has ended, but the result backend does not store that (%s: %s): tried again "
        "as long as the lease is held",
        run.task.name,
        run.task_id,
        type(exc).__name__,
        masked(exc, getattr(run.task.backend, "url", None)),
        extra=run.ticket.fields,
    )


def _succeeded(run: Run) -> None:
    if run.tries:
        text = "task %s[%s]: stored at last, after %s"
        extra = run.ticket.fields
        tries = counted(run.tries, "failed try", "failed tries")
        logger.info(text, run.task.name, run.task_id, tries, extra=extra)
        run.tries = 0
