"""Leased tasks: a Celery task whose message is held under a lease while it runs.

The lease itself is kept by the worker's main process. Here, in the task process, its outcome is
guarded: whatever a run returns or raises after its lease is gone is thrown away, because the
message is somebody else's by then.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.exceptions import Ignore, Reject
from celery.utils.functional import head_from_fun
from celery.utils.imports import symbol_by_name

from celery_lease import settings
from celery_lease.confirm import confirm
from celery_lease.context import (
    ToolContext,
    active_context,
    entered,
    leased_context,
    private_context,
)
from celery_lease.core.errors import LeaseLost, ShutdownRequested
from celery_lease.core.policy import Fault
from celery_lease.injection import Injection
from celery_lease.settings import LeaseConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

logger = logging.getLogger(__name__)

#: A run that returns with less than this share of its lease left asks the broker first, so that
#: storing the result does not outlast the lease.
MARGIN = 0.1


class Discarded(Ignore):
    """The outcome of a run that lost its lease; Celery stores nothing and calls nothing for it."""


class HandedOver(Reject):
    """The outcome of a run that ended because its worker stops; the message goes back."""


class LeasedTask(Task):
    """Base class of leased tasks: ``@app.task(base=LeasedTask)``, or a class of your own.

    A leased task is acknowledged when it has ended, and its message returns to the queue when its
    process dies; both come with being leased and cannot be switched off. All ``lease_*``
    settings that are also task options can be given as attributes or as decorator arguments.
    """

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    Request = "celery_lease.worker.request:LeasedRequest"

    #: What puts the worker parts into an app; named by a string, as Celery names its parts.
    Installer = "celery_lease.install:install"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap ``run``, wherever a class defines one, and check the options given with it."""
        super().__init_subclass__(**kwargs)
        _check_options(cls)
        run = cls.__dict__.get("run")
        if run is not None:
            _lease_run(cls, run)

    @classmethod
    def bind(cls, app: Celery) -> Any:
        """Bind to an app, installing the worker parts there if they are not yet."""
        bound = super().bind(app)
        _check_acks_late(cls)
        symbol_by_name(cls.Installer)(app)
        return bound

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        *positional: Any,
        **options: Any,
    ) -> Any:
        """As in Celery, and with the ``lease_*`` settings of the table as options.

        Raises:
            LeaseConfigError: A ``lease_*`` option is unknown or wrong. Nothing was sent.
        """
        lease = {name: options.pop(name) for name in list(options) if name.startswith("lease_")}
        if lease:
            base = settings.task_lease(
                settings.load(self.app.conf), lease_options(self), self.name
            )
            settings.call_lease(base, lease, self.name)
            options["headers"] = {**(options.get("headers") or {}), "lease": lease}
        return super().apply_async(args, kwargs, *positional, **options)

    def retry(self, *args: Any, **options: Any) -> Any:
        """As in Celery, while the lease is held.

        Raises:
            LeaseLost: The lease is gone: whoever holds it now decides on retries. Nothing was sent.
        """
        self._check_lease()
        return super().retry(*args, **options)

    def replace(self, sig: Any) -> Any:
        """As in Celery, while the lease is held.

        Raises:
            LeaseLost: The lease is gone. Nothing was sent.
        """
        self._check_lease()
        return super().replace(sig)

    def update_state(self, *args: Any, **options: Any) -> Any:
        """As in Celery, while the lease is held.

        Raises:
            LeaseLost: The lease is gone: the state is its new holder's. Nothing was stored.
        """
        self._check_lease()
        return super().update_state(*args, **options)

    def _check_lease(self) -> None:
        context = active_context()
        if context is not None and context.leased and context.is_lost:
            raise LeaseLost(context.task_id)


def lease_options(task: LeasedTask) -> dict[str, object]:
    """Return the ``lease_*`` options that a task's author has set."""
    return {
        name: value
        for cls in reversed(type(task).__mro__)
        for name, value in vars(cls).items()
        if name.startswith("lease_")
    }


def _check_options(cls: type[LeasedTask]) -> None:
    if "acks_late" in cls.__dict__:
        _check_acks_late(cls)
    options = {name: value for name, value in vars(cls).items() if name.startswith("lease_")}
    if options:
        settings.check_task_options(options, task=cls.__dict__.get("name") or cls.__qualname__)


def _check_acks_late(cls: type[LeasedTask]) -> None:
    if not cls.acks_late:
        fault = Fault(
            "acks_late",
            cls.acks_late,
            "a leased task must be acknowledged late: an early acknowledgement ends the lease "
            "before the work begins",
            "remove acks_late=False, or make it a plain task",
        )
        raise LeaseConfigError((fault,), f"task {cls.name or cls.__qualname__!r}")


def _lease_run(cls: type[LeasedTask], run: Any) -> None:
    """Replace a class's ``run`` by one that runs it under the lease, and hide the context."""
    function = run.__func__ if isinstance(run, (staticmethod, classmethod)) else run
    is_method = not isinstance(run, staticmethod)
    injection = Injection.of(function, skip_first=is_method)

    @functools.wraps(function)
    def leased(self: LeasedTask, *args: Any, **kwargs: Any) -> Any:
        bound = functools.partial(function, self) if is_method else function
        return _run(self, bound, injection, args, kwargs)

    # Celery and its tools read signatures from the wrapped function where they find one.
    leased.__signature__ = _with_self(injection)  # type: ignore[attr-defined]
    cls.run = leased  # type: ignore[method-assign]
    if "__header__" in cls.__dict__ and injection.name is not None:
        cls.__header__ = staticmethod(_header(function, injection))


def _with_self(injection: Injection) -> Any:
    import inspect  # noqa: PLC0415

    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [each for each in injection.public.parameters.values()]
    if any(each.kind is each.POSITIONAL_ONLY for each in parameters) is False:
        first = first.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return injection.public.replace(parameters=[first, *parameters])


def _header(function: Any, injection: Injection) -> Callable[..., Any]:
    """Make Celery's check of call arguments from the public signature."""

    def stub() -> None: ...

    stub.__name__ = function.__name__
    stub.__signature__ = injection.public  # type: ignore[attr-defined]
    return head_from_fun(stub, bound=False)  # type: ignore[no-any-return]


def _run(
    task: LeasedTask,
    function: Callable[..., Any],
    injection: Injection,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if injection.given(kwargs):
        return function(*args, **kwargs)
    request = task.request
    ticket = (request.delivery_info or {}).get("lease")
    outer = active_context()
    if ticket is None or request.called_directly or request.is_eager:
        # Inside another leased task this beats for that one's lease: it is the work going on.
        context = outer or private_context(request.id or "")
        args, kwargs = injection.arguments(args, kwargs, context)
        with entered(context):
            return function(*args, **kwargs)
    return _run_leased(task, ticket, function, injection, args, kwargs)


def _run_leased(
    task: LeasedTask,
    ticket: dict[str, Any],
    function: Callable[..., Any],
    injection: Injection,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    request = task.request
    context: ToolContext | None = None
    try:
        context = leased_context(ticket, request.id)
        if context.is_lost:
            raise LeaseLost(request.id, "expired before the task started")
        context._start()
        args, kwargs = injection.arguments(args, kwargs, context)
        with entered(context):
            result = function(*args, **kwargs)
    except ShutdownRequested as exc:
        raise HandedOver(exc, requeue=True) from None
    except Exception as exc:
        if context is None or not _keep(task, context, ticket):
            raise _discard(task, exc) from None
        raise
    if not _keep(task, context, ticket):
        raise _discard(task, None)
    return result


def _keep(task: LeasedTask, context: ToolContext, ticket: dict[str, Any]) -> bool:
    """Decide whether an outcome counts. Asks the broker only when the lease is as good as over."""
    if context._observed:
        return True
    if not context.is_lost:
        if context.remaining > ticket["extension"] * MARGIN:
            return True
    elif (context._flags() or 0) & 2:  # TAKEN
        return False
    return confirm(task.app, ticket)


def _discard(task: LeasedTask, exc: Exception | None) -> Discarded:
    logger.warning(
        "task %s[%s] lost its lease: its %s is discarded, the message is run elsewhere",
        task.name,
        task.request.id,
        "result" if exc is None else f"{type(exc).__name__}",
    )
    return Discarded(exc)
