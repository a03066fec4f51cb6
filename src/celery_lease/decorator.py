"""``@leased_task``: to ``@shared_task`` what :class:`LeasedTask` is to ``Task``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import _state
from celery.local import Proxy

from celery_lease.task import LeasedTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery


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
        return _share(args[0], {})
    if args:
        raise TypeError("@leased_task takes keyword options only, as in @leased_task(bind=True)")
    return lambda function: _share(function, options)


def _share(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Register a task with all apps, those there are and those to come.

    As ``celery.shared_task`` (5.5 to 5.7), which takes one base class for all apps.
    """

    def register(app: Celery) -> Any:
        return app.task(lazy=False, shared=False, **{"base": _base(app), **options})(function)

    _state.connect_on_app_finalize(register)
    for app in _state._get_active_apps():
        if app.finalized:
            register(app)

    def find() -> Any:
        app = _state.get_current_app()
        name = options.get("name") or app.gen_task_name(function.__name__, function.__module__)
        return app.tasks[name]

    return Proxy(find)


def _base(app: Celery) -> type:
    own = app.Task
    if issubclass(LeasedTask, own) or LeasedTask in own.__mro__:
        return LeasedTask if issubclass(LeasedTask, own) else own
    return type("LeasedTask", (LeasedTask, own), {"abstract": True, "__module__": __name__})
