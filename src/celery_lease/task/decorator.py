"""``@leased_task``: the decorator for a :class:`LeasedTask`, as ``@shared_task`` for a ``Task``.

For type checkers a decorated function is a ``Task`` with the function's own parameters and result,
less the context if that is its first parameter: ``def transcode(context: ToolContext, path: str)``.
Python's typing cannot remove a keyword-only parameter from a signature, so of a function with
``*, context`` only the result is known. (mypy sees that form with up to five other positional
parameters; pyright always.) In a bound task annotate ``self`` as :class:`LeasedTask`: where it has
an ``Any``, as ``Task[Any, Any]``, mypy may forget the result.
"""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from celery import Celery, Task, _state
from celery.local import Proxy

from celery_lease.task.task import LeasedTask, check_options, mixed_base
from celery_lease.task.wrapping import check_function

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from celery.result import AsyncResult

    from celery_lease.task.context import ToolContext

    class TypedTask(Task[P, R_co]):
        """A leased task for type checkers; at run time it is a :class:`LeasedTask`."""

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
            lease_key: str | Callable[..., str | None] | None = ...,
            lease_key_limit: int = ...,
            lease_on_busy: Literal["wait", "drop", "replace"] = ...,
            **options: Any,
        ) -> AsyncResult[R_co]: ...


class CallOptions(TypedDict, total=False):
    """The ``lease_*`` options of a call, which are also options of a task."""

    lease_enabled: bool
    lease_extension: float
    lease_interval: float
    lease_mode: Literal["heartbeat", "daemon", "observe"]
    lease_max_duration: float
    lease_key: str | Callable[..., str | None] | None
    lease_key_limit: int
    lease_on_busy: Literal["wait", "drop", "replace"]


class TaskOptions(CallOptions, total=False):
    """The options of ``@leased_task`` beside ``bind``: Celery's task options and ``lease_*`` ones.

    It is closed, so that type checkers find a misspelt option. An attribute of your own, which
    Celery would accept as an option, belongs into a base class: ``base=``.
    """

    lease_on_lost: Literal["abort", "continue"]
    lease_watchdog_threshold: float | None
    lease_shutdown_timeout: float
    lease_interruptible: bool
    lease_hold_reserved: bool
    lease_max_deliveries: int

    name: str
    base: type[Task[Any, Any]]
    typing: bool
    serializer: str
    queue: str
    priority: int | None
    rate_limit: str | float | None
    expires: float | datetime | None
    time_limit: float | None
    soft_time_limit: float | None
    throws: tuple[type[Exception], ...]
    max_retries: int | None
    default_retry_delay: float
    autoretry_for: Sequence[type[BaseException]]
    dont_autoretry_for: Sequence[type[BaseException]]
    retry_kwargs: dict[str, Any]
    retry_backoff: bool | float
    retry_backoff_max: float
    retry_jitter: bool
    acks_on_failure_or_timeout: bool
    ignore_result: bool
    store_errors_even_if_ignored: bool
    resultrepr_maxsize: int
    track_started: bool
    trail: bool
    send_events: bool
    Request: str | type[Any]
    after_return: Callable[..., Any]
    before_start: Callable[..., Any]
    on_failure: Callable[..., Any]
    on_retry: Callable[..., Any]
    on_success: Callable[..., Any]
    pydantic: bool
    pydantic_strict: bool
    pydantic_context: dict[str, Any] | None
    pydantic_dump_kwargs: dict[str, Any] | None


class _Nothing:
    """Matches functions whose first parameter takes anything, and so may not be a context.

    Without this they would match as functions that take a context there.
    """


class _Wants(Protocol[R_co]):
    """A function with a parameter ``context`` and any others."""

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
    """The result of ``leased_task(**options)``."""

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
    """The result of ``leased_task(bind=True, **options)``: the first parameter is the task."""

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


class _EitherDecorator(Protocol):
    """The result of ``leased_task(bind=flag, **options)``."""

    def __call__(self, function: Callable[..., R], /) -> TypedTask[..., R]: ...


@overload
def leased_task(*, bind: Literal[True], **options: Unpack[TaskOptions]) -> _BoundDecorator: ...
@overload
def leased_task(*, bind: Literal[False] = False, **options: Unpack[TaskOptions]) -> _Decorator: ...
@overload
def leased_task(*, bind: bool, **options: Unpack[TaskOptions]) -> _EitherDecorator: ...
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
    """Make a function a leased task of every app, as ``@shared_task`` makes a plain task.

    The options are those of ``@app.task``, and the ``lease_*`` task options. A ``base=`` that is a
    plain task class becomes a leased one. Without a base, tasks of an app with a task class of its
    own (``Celery(task_cls=…)``, Django's) also inherit from that.

    Example::

        @leased_task(lease_extension=120)
        def transcode(path: str, *, context: ToolContext) -> str: ...

    Raises:
        LeaseConfigError: An option is unknown or wrong, or the function is ``async def``.
    """
    if len(args) == 1 and callable(args[0]):
        return _share(args[0], options)
    if args:
        raise TypeError("@leased_task takes keyword options only, as in @leased_task(bind=True)")
    return lambda function: _share(function, options)


def _share(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Register a task with all apps, present and future.

    Like ``celery.shared_task`` (5.5 to 5.7), with a leased base class.
    """
    name = options.get("name") or function.__qualname__
    check_options(options, name)
    check_function(function, name)
    base = mixed_base(options.get("base") or LeasedTask, name)

    def register(app: Celery) -> Any:
        decorate: Any = app.task(lazy=False, shared=False, **{**options, "base": base})
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
