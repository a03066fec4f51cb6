"""What runs under the lease: a task class's ``run``, and the hooks that Celery calls around it.

Each is replaced by a function that does so; tools still see the signature without the context.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.utils.functional import head_from_fun

from celery_lease.core.faults import Fault
from celery_lease.settings import LeaseConfigError
from celery_lease.task import outcome
from celery_lease.task.injection import Injection

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.task.task import LeasedTask

#: Celery's hooks that run under the lease; all others run after it has ended.
HOOKS = {"before_start": outcome.before_start, "on_retry": outcome.on_retry}


def wrap_run(cls: type[LeasedTask]) -> None:
    """Replace a class's ``run`` by a method that runs it under the lease, and hide the context."""
    run = inspect.getattr_static(cls, "run")
    if run is Task.run or getattr(run, "is_leased", False):
        return
    is_method = not isinstance(run, staticmethod)
    function = run if inspect.isfunction(run) else getattr(run, "__func__", run)
    check_function(function, vars(cls).get("name") or cls.__qualname__)
    injection = Injection.of(function, skip_first=is_method)

    @functools.wraps(function)
    def leased(self: LeasedTask, /, *args: Any, **kwargs: Any) -> Any:
        bound = functools.partial(function, self) if is_method else function
        return outcome.run(self, bound, injection, args, kwargs)

    # Tools read signatures from the wrapped function, where they would find the context.
    leased.__signature__ = _as_method(injection.public)  # type: ignore[attr-defined]
    leased.is_leased = True  # type: ignore[attr-defined]
    cls.run = leased  # type: ignore[assignment, method-assign]
    if "__header__" in cls.__dict__ and injection.name is not None:
        # As Celery's type_checker() made it from the whole signature.
        cls.__header__ = staticmethod(_header(function.__name__, injection.public))  # type: ignore[attr-defined]


def wrap_hooks(cls: type[LeasedTask]) -> None:
    """Replace the hooks of a class that run under its lease."""
    for name, around in HOOKS.items():
        hook = inspect.getattr_static(cls, name)
        if inspect.isfunction(hook) and not getattr(hook, "is_leased", False):
            _wrap_hook(cls, hook, around)


def check_function(function: object, name: str) -> None:
    """Check that a call of the task's function does its work; *name* is the task's.

    Raises:
        LeaseConfigError: The call would only create a coroutine or a generator.
    """
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        what, hint = "an async function, which no pool awaits", outcome.ASYNC_HINT
    elif inspect.isgeneratorfunction(function):
        what, hint = "a generator function, which no pool runs", "return a list instead of yielding"
    else:
        return
    raise LeaseConfigError((Fault("run", function, what, hint),), f"task {name!r}")


def _wrap_hook(cls: type[LeasedTask], hook: Any, around: Callable[..., Any]) -> None:
    """Replace one of Celery's hooks by *around*, which calls it."""
    if hook is Task.before_start:  # Celery skips hooks that do nothing
        return

    @functools.wraps(hook)
    def leased(self: LeasedTask, /, *args: Any, **kwargs: Any) -> Any:
        return around(self, functools.partial(hook, self), *args, **kwargs)

    leased.is_leased = True  # type: ignore[attr-defined]
    setattr(cls, hook.__name__, leased)


def _as_method(signature: inspect.Signature) -> inspect.Signature:
    first = inspect.Parameter("_self", inspect.Parameter.POSITIONAL_ONLY)
    return signature.replace(parameters=[first, *signature.parameters.values()])


def _header(name: str, public: inspect.Signature) -> Callable[..., Any]:
    """Create Celery's check of call arguments for the public signature."""

    def stub() -> None: ...

    stub.__name__ = name
    stub.__signature__ = public  # type: ignore[attr-defined]
    return head_from_fun(stub, bound=False)
