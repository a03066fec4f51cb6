"""``map``, ``starmap`` and ``chunks`` of leased tasks: one message for many items, one lease.

Celery sends these as tasks of its own, ``celery.map`` and the like, which are acknowledged early
and are no leased tasks. Those of a leased task are leased tasks, too, with the options of the inner
task, and beat for each item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Celery, chunks as celery_chunks, group, signature
from celery.canvas import Signature

from celery_lease.task import keys
from celery_lease.task.task import LeasedTask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from celery_lease.task.context import ToolContext

MAP, STARMAP, CHUNKS = "celery_lease.map", "celery_lease.starmap", "celery_lease.chunks"
NAMES = frozenset({MAP, STARMAP, CHUNKS})

#: Message header with the name of the inner task; its ``lease_*`` options apply.
INNER = "lease_inner"
#: Other options of the inner task that apply to the message; a time limit is per item, so it does
#: not.
INHERITED = (
    "queue",
    "exchange",
    "routing_key",
    "priority",
    "expires",
    "serializer",
    "compression",
    "delivery_mode",
)


class MappingTask(LeasedTask):
    """A task that calls another task for each of many items."""

    abstract = True

    def apply_async(
        self, args: Any = None, kwargs: Any = None, *positional: Any, **options: Any
    ) -> Any:
        """As in Celery, with the options of the inner task unless the call has its own."""
        given: Any = kwargs or {}
        name = str(given.get("task", {}).get("task", ""))
        inner: Any = self.app.tasks.get(name)
        inherited = {option: getattr(inner, option, None) for option in INHERITED}
        inherited = {option: value for option, value in inherited.items() if value is not None}
        options = {**inherited, **options, "route_name": name}
        options["headers"] = {**(options.get("headers") or {}), INNER: name}
        rule = keys.rule_of(type(inner)) if isinstance(inner, LeasedTask) else None
        if rule is not None and keys.OPTION not in options:
            raise keys.refuse_many(rule, name)
        return super().apply_async(args, kwargs, *positional, **options)

    def owner_of_options(self, headers: Mapping[str, Any]) -> LeasedTask:
        """Return the inner task if it is a leased task, else this one."""
        inner: Any = self.app.tasks.get(str(headers.get(INNER)))
        return inner if isinstance(inner, LeasedTask) else self


class LeasedChunks(celery_chunks):
    """Celery's ``chunks`` with leased parts."""

    def __init__(self, task: Any, it: Iterable[Any], n: int, **options: Any) -> None:
        super().__init__(task, it, n, **options)
        self["task"] = CHUNKS

    def group(self) -> Any:
        """Return the parts as a group, one message each."""
        parts: Any = super().group().tasks
        return group((_of(STARMAP, **part.kwargs, app=self.app) for part in parts), app=self.app)


def mapped(task: LeasedTask, items: Iterable[Any]) -> Any:
    """Return a signature that calls *task* with each of the *items*."""
    return _of(MAP, task=task.s(), it=list(items), app=task.app)


def starmapped(task: LeasedTask, items: Iterable[Any]) -> Any:
    """Return a signature that calls *task* with the arguments in each of the *items*."""
    return _of(STARMAP, task=task.s(), it=list(items), app=task.app)


def chunked(task: LeasedTask, items: Iterable[Any], n: int) -> Any:
    """Return a signature that sends :func:`starmapped` messages of *n* items each."""
    return LeasedChunks(task.s(), items, n, app=task.app)


def register(app: Celery) -> None:
    """Register these tasks with an app; safe to repeat."""
    for name, function in ((MAP, _map), (STARMAP, _starmap), (CHUNKS, _chunks)):
        decorate: Any = app.task(name=name, base=MappingTask, bind=True, shared=False, lazy=False)
        decorate(function)


def _of(name: str, *, task: Any, it: Any, app: Celery) -> Signature[Any]:
    kwargs = {"task": task, "it": list(it)}
    return Signature(name, (), kwargs, immutable=True, app=app)


def _map(self: Any, task: Any, it: Any, *, context: ToolContext) -> list[Any]:
    inner = signature(task, app=self.app).type
    return [inner(item) for item in _anew(context, it)]


def _starmap(self: Any, task: Any, it: Any, *, context: ToolContext) -> list[Any]:
    inner = signature(task, app=self.app).type
    return [inner(*item) for item in _anew(context, it)]


def _anew(context: ToolContext, it: Any) -> Iterator[Any]:
    """Track the items; no loop within an item resumes at the place of a former item's."""
    for item in context.track(it):
        context._checkpoints.forget_places()  # noqa: SLF001
        yield item


def _chunks(self: Any, task: Any, it: Any, n: int, *, context: ToolContext) -> Any:
    context.beat()
    return LeasedChunks.apply_chunks(task, it, n, app=self.app)
