"""Leased tasks: a Celery task whose message is held under a lease while it runs.

The lease itself is kept by the worker's main process. Here is what a task's author and its callers
meet: options, their checks, and Celery's own methods as far as a lease changes what they may do.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.utils.functional import head_from_fun
from celery.utils.imports import symbol_by_name

from celery_lease import outcome, settings
from celery_lease.core.errors import LeaseLost, TaskCancelled
from celery_lease.core.policy import Fault
from celery_lease.current import active_context
from celery_lease.injection import Injection
from celery_lease.settings import LeaseConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery

#: What a leased task cannot do without, and why.
NATURE = {
    "acks_late": "a leased task must be acknowledged late: an early acknowledgement ends the lease "
    "before the work begins",
    "reject_on_worker_lost": "a leased task's message must go back when its process dies: that is "
    "what the lease is for",
}

#: Message header that carries a call's own ``lease_*`` options.
HEADER = "lease"
#: Where the ticket of a delivery is in a request's ``delivery_info``.
TICKET = "lease"


class LeasedTask(Task):  # type: ignore[type-arg]  # not subscriptable when it runs
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
        """Wrap ``run``, wherever a class gets one from, and check the options given with it."""
        super().__init_subclass__(**kwargs)
        check_options(vars(cls), cls.__dict__.get("name") or cls.__qualname__)
        run = inspect.getattr_static(cls, "run")
        if run is not Task.run and not getattr(run, "is_leased", False):
            _lease_run(cls, run)

    @classmethod
    def bind(cls, app: Celery) -> Any:
        """Bind to an app, installing the worker parts there if they are not yet.

        Raises:
            LeaseConfigError: The app's ``task_annotations`` take from the task what it must have.
        """
        bound = super().bind(app)
        check_options({option: getattr(cls, option) for option in NATURE}, cls.name)
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
            headers = options.get("headers") or {}
            # A retry brings the options of the call that it repeats.
            lease = {**(headers.get(HEADER) or {}), **lease}
            base = settings.task_lease(settings.load(self.app.conf), lease_options(self), self.name)
            settings.call_lease(base, lease, self.name)
            options["headers"] = {**headers, HEADER: lease}
        return super().apply_async(args, kwargs, *positional, **options)

    def signature_from_request(self, *args: Any, **options: Any) -> Any:
        """As in Celery; the lease of this delivery is not part of the next message."""
        signature = super().signature_from_request(*args, **options)
        # Where the exchange has a name Celery copies all of delivery_info, the ticket included.
        signature.options.pop(TICKET, None)
        return signature

    subtask_from_request = signature_from_request

    def retry(self, *args: Any, **options: Any) -> Any:
        """As in Celery, while the lease is held.

        Raises:
            LeaseLost: The lease is gone: whoever holds it now decides on retries. Nothing was sent.
            TaskCancelled: The task was cancelled, which is not to be tried again.
        """
        self._hold()
        return super().retry(*args, **options)

    def replace(self, sig: Any) -> Any:
        """As in Celery, while the lease is held.

        Raises:
            LeaseLost: The lease is gone. Nothing was sent.
            TaskCancelled: The task was cancelled, and so is what would replace it.
        """
        self._hold()
        return super().replace(sig)

    def update_state(self, task_id: str | None = None, *args: Any, **options: Any) -> Any:
        """As in Celery, while the lease is held; the state is its new holder's then.

        Raises:
            LeaseLost: The lease is gone. Nothing was stored. Not with ``lease_on_lost="continue"``,
                where nothing is stored either.
        """
        context = active_context()
        if context is not None and task_id in (None, context.task_id) and context.is_lost:
            context.check()
            return None
        return super().update_state(task_id, *args, **options)

    def _hold(self) -> None:
        """Make sure that the lease is held before something is sent that ends the run."""
        context, ticket = active_context(), outcome.ticket_of(self)
        if context is None or ticket is None:
            return
        if not outcome.may_act(self.app, context, ticket):
            raise LeaseLost(context.task_id)
        if context.cancelled:
            raise TaskCancelled(context.task_id)


def lease_options(task: LeasedTask) -> dict[str, object]:
    """Return the ``lease_*`` options that a task's author has set."""
    return {
        name: value
        for cls in reversed(type(task).__mro__)
        for name, value in vars(cls).items()
        if name.startswith("lease_")
    }


def check_options(options: Mapping[str, Any], name: str) -> None:
    """Check what a task's author has set for the task called *name*; other options are Celery's.

    Raises:
        LeaseConfigError: A ``lease_*`` option is unknown or wrong, or takes from the task what a
            leased one must have.
    """
    faults = tuple(
        Fault(option, options[option], rule, f"remove {option}, or make it a plain task")
        for option, rule in NATURE.items()
        if not options.get(option, True)
    )
    if faults:
        raise LeaseConfigError(faults, f"task {name!r}")
    lease = {option: value for option, value in options.items() if option.startswith("lease_")}
    settings.check_task_options(lease, task=name)


def _lease_run(cls: type[LeasedTask], run: Any) -> None:
    """Replace a class's ``run`` by one that runs it under the lease, and hide the context."""
    is_method = not isinstance(run, staticmethod)
    function = run if inspect.isfunction(run) else getattr(run, "__func__", run)
    injection = Injection.of(function, skip_first=is_method)

    @functools.wraps(function)
    def leased(self: LeasedTask, *args: Any, **kwargs: Any) -> Any:
        bound = functools.partial(function, self) if is_method else function
        return outcome.run(self, bound, injection, args, kwargs)

    # Tools read signatures from the wrapped function, where they would find the context.
    leased.__signature__ = _as_method(injection.public)  # type: ignore[attr-defined]
    leased.is_leased = True  # type: ignore[attr-defined]
    cls.run = leased  # type: ignore[assignment, method-assign]
    if "__header__" in cls.__dict__ and injection.name is not None:
        # As Celery's type_checker() made it from the whole signature.
        cls.__header__ = staticmethod(_header(function.__name__, injection.public))  # type: ignore[attr-defined]


def _as_method(signature: inspect.Signature) -> inspect.Signature:
    first = inspect.Parameter("_self", inspect.Parameter.POSITIONAL_ONLY)
    return signature.replace(parameters=[first, *signature.parameters.values()])


def _header(name: str, public: inspect.Signature) -> Callable[..., Any]:
    """Make Celery's check of call arguments from the public signature."""

    def stub() -> None: ...

    stub.__name__ = name
    stub.__signature__ = public  # type: ignore[attr-defined]
    return head_from_fun(stub, bound=False)
