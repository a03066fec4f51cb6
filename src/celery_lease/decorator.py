"""``@leased_task``: to ``@shared_task`` what :class:`LeasedTask` is to ``Task``.

For type checkers a decorated function is a ``Task`` with the function's own parameters and result,
less the context if that is its first parameter: ``def transcode(context: ToolContext, path: str)``.
Python's typing cannot take a keyword-only parameter out of a signature, so that of a function with
``*, context`` is known by its result only. (mypy sees that form with up to five other positional
parameters; pyright always.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from celery import _state
from celery.local import Proxy

from celery_lease.task import LeasedTask, check_options

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery, Task
    from celery.result import AsyncResult

    from celery_lease.context import ToolContext

    class TypedTask(Task[P, R_co]):
        """A leased task as type checkers see it; when it runs it is a :class:`LeasedTask`."""

        def apply_async(
            self,
            args: Any = None,
            kwargs: Any = None,
            *positional: Any,
            lease_enabled: bool = ...,
            lease_extension: float = ...,
            lease_interval: float = ...,
            lease_mode: Literal["heartbeat", "daemon", "observe"] = ...,
            lease_max_duration: float = ...,
            **options: Any,
        ) -> AsyncResult[R_co]: ...


class _Nothing:
    """What no function takes but those whose first parameter takes anything, so maybe no context.

    Without this they would be taken for functions that take a context there.
    """


class _Wants(Protocol[R_co]):
    """A function with a parameter ``context``, whatever its other ones."""

    def __call__(self, *args: Any, context: ToolContext, **kwargs: Any) -> R_co: ...


class _Wants0(Protocol[R_co]):
    def __call__(self, *, context: ToolContext) -> R_co: ...


class _Wants1(Protocol[R_co]):
    def __call__(self, a: Any, /, *, context: ToolContext) -> R_co: ...


class _Wants2(Protocol[R_co]):
    def __call__(self, a: Any, b: Any, /, *, context: ToolContext) -> R_co: ...


class _Wants3(Protocol[R_co]):
    def __call__(self, a: Any, b: Any, c: Any, /, *, context: ToolContext) -> R_co: ...


class _Wants4(Protocol[R_co]):
    def __call__(self, a: Any, b: Any, c: Any, d: Any, /, *, context: ToolContext) -> R_co: ...


class _Wants5(Protocol[R_co]):
    def __call__(
        self, a: Any, b: Any, c: Any, d: Any, e: Any, /, *, context: ToolContext
    ) -> R_co: ...


class _Decorator(Protocol):
    """What ``leased_task(**options)`` returns."""

    @overload
    def __call__(self, function: Callable[Concatenate[_Nothing, P], R], /) -> TypedTask[..., R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[ToolContext, P], R], /
    ) -> TypedTask[P, R]: ...
    @overload
    def __call__(self, function: _Wants[R], /) -> TypedTask[..., R]: ...
    @overload
    def __call__(self, function: _Wants0[R], /) -> TypedTask[..., R]: ...
    @overload
    def __call__(self, function: _Wants1[R], /) -> TypedTask[..., R]: ...
    @overload
    def __call__(self, function: _Wants2[R], /) -> TypedTask[..., R]: ...
    @overload
    def __call__(self, function: _Wants3[R], /) -> TypedTask[..., R]: ...
    @overload
    def __call__(self, function: _Wants4[R], /) -> TypedTask[..., R]: ...
    @overload
    def __call__(self, function: _Wants5[R], /) -> TypedTask[..., R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> TypedTask[P, R]: ...


class _BoundDecorator(Protocol):
    """What ``leased_task(bind=True, **options)`` returns: the first parameter is the task."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, _Nothing, P], R], /
    ) -> TypedTask[..., R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, ToolContext, P], R], /
    ) -> TypedTask[P, R]: ...
    @overload
    def __call__(self, function: _Wants[R], /) -> TypedTask[..., R]: ...
    @overload
    def __call__(self, function: _Wants1[R], /) -> TypedTask[..., R]: ...
    @overload
    def __call__(self, function: _Wants2[R], /) -> TypedTask[..., R]: ...
    @overload
    def __call__(self, function: _Wants3[R], /) -> TypedTask[..., R]: ...
    @overload
    def __call__(self, function: _Wants4[R], /) -> TypedTask[..., R]: ...
    @overload
    def __call__(self, function: _Wants5[R], /) -> TypedTask[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> TypedTask[P, R]: ...


@overload
def leased_task(*, bind: Literal[True], **options: Any) -> _BoundDecorator: ...
@overload
def leased_task(*, bind: Literal[False] = False, **options: Any) -> _Decorator: ...
@overload
def leased_task(function: Callable[Concatenate[_Nothing, P], R], /) -> TypedTask[..., R]: ...
@overload
def leased_task(function: Callable[Concatenate[ToolContext, P], R], /) -> TypedTask[P, R]: ...
@overload
def leased_task(function: _Wants[R], /) -> TypedTask[..., R]: ...
@overload
def leased_task(function: _Wants0[R], /) -> TypedTask[..., R]: ...
@overload
def leased_task(function: _Wants1[R], /) -> TypedTask[..., R]: ...
@overload
def leased_task(function: _Wants2[R], /) -> TypedTask[..., R]: ...
@overload
def leased_task(function: _Wants3[R], /) -> TypedTask[..., R]: ...
@overload
def leased_task(function: _Wants4[R], /) -> TypedTask[..., R]: ...
@overload
def leased_task(function: _Wants5[R], /) -> TypedTask[..., R]: ...
@overload
def leased_task(function: Callable[P, R], /) -> TypedTask[P, R]: ...
def leased_task(*args: Any, **options: Any) -> Any:
    """Make a function a leased task of every app, as ``@shared_task`` does with plain ones.

    Options are those of ``@app.task``, and the ``lease_*`` task options. Tasks of an app that has a
    task class of its own (``Celery(task_cls=…)``) also inherit from that.

    Example::

        @leased_task(lease_extension=120)
        def transcode(path: str, *, context: ToolContext) -> str: ...

    Raises:
        LeaseConfigError: An option is unknown or wrong.
    """
    if len(args) == 1 and callable(args[0]):
        return _share(args[0], options)
    if args:
        raise TypeError("@leased_task takes keyword options only, as in @leased_task(bind=True)")
    return lambda function: _share(function, options)


def _share(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Register a task with all apps, those there are and those to come.

    As ``celery.shared_task`` (5.5 to 5.7), which takes one base class for all apps.
    """
    check_options(options, options.get("name") or function.__qualname__)

    def register(app: Celery) -> Any:
        decorate: Any = app.task(lazy=False, shared=False, **{"base": _base(app), **options})
        return decorate(function)

    _state.connect_on_app_finalize(register)
    for app in _state._get_active_apps():  # type: ignore[attr-defined]  # noqa: SLF001
        if app.finalized:
            register(app)

    def find() -> Any:
        app = _state.get_current_app()
        name = options.get("name") or app.gen_task_name(function.__name__, function.__module__)
        return app.tasks[name]

    return Proxy(find)


def _base(app: Celery) -> type:
    """Return the base class of an app's leased tasks: the app's own tasks' class is one of them."""
    own = app.Task
    if issubclass(own, LeasedTask):
        return own
    return type("LeasedTask", (LeasedTask, own), {"abstract": True, "__module__": __name__})
