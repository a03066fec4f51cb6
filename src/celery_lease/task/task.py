"""``LeasedTask``: a Celery task whose message is held under a lease while it runs.

The worker's main process keeps the lease itself. This module has the interface for a task's author
and callers: options, their checks, and the methods of Celery that a lease changes.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

from celery import Celery, Task
from celery.utils.imports import symbol_by_name

from celery_lease import settings
from celery_lease.core.faults import Fault
from celery_lease.core.ticket import KEY as TICKET
from celery_lease.settings import LeaseConfigError
from celery_lease.task import keys, outcome, tracing, wrapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The attributes that a leased task needs, and the rule in an error.
NATURE = {
    "acks_late": "a leased task must be acknowledged late: an early acknowledgement ends the lease "
    "before the work begins",
    "reject_on_worker_lost": "a leased task's message must be returned to its queue when its "
    "process dies: that is what the lease is for",
}

ALSO = "also from task_annotations,"

#: The class that makes requests of messages: only Celery's own makes requests with a lease.
STRATEGY = "Strategy"

#: The module of ``map`` and the like, which are leased tasks themselves.
MAPPING = "celery_lease.task.mapping:"

#: Message header with a call's own ``lease_*`` options.
HEADER = "lease"


class LeasedTask(Task):  # type: ignore[type-arg]  # not subscriptable when it runs
    """Base class of leased tasks: ``@app.task(base=LeasedTask)``, or a class of your own.

    A leased task is acknowledged when it has ended, and its message returns to the queue when its
    process dies; a leased task needs both, so they cannot be switched off. All ``lease_*`` settings
    that are also task options can be given as attributes or as decorator arguments.
    """

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    Request = "celery_lease.worker.request:LeasedRequest"

    _tracer: Any = None
    #: Installs the worker parts into an app; named by a string, as Celery names its parts.
    Installer = "celery_lease.installation:install"
    #: Combines ``LeasedRequest`` with an author's own class.
    Mixer = "celery_lease.worker.mixing:mixed"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap ``run`` of any class, and check the options given with it."""
        name = vars(cls).get("name") or cls.__qualname__
        app = vars(cls).get("app")  # set by Celery's decorators
        if isinstance(app, Celery) and cls.__bases__ == (LeasedTask,):
            # In Celery base= replaces the app's task class. LeasedTask must not: the features that
            # Django, Flask and others put into that class apply to leased tasks, too.
            cls.__bases__ = (mixed_base(app.Task, name),)
        super().__init_subclass__(**kwargs)
        check_options({**vars(cls), STRATEGY: cls.Strategy}, name)
        wrapping.wrap_run(cls)
        _check_key(cls, name)
        wrapping.wrap_hooks(cls)

    @property
    def __trace__(self) -> Any:
        """The tracer that a task process calls for a message; the setter makes it a leased one."""
        return self._tracer

    @__trace__.setter
    def __trace__(self, tracer: Any) -> None:
        self._tracer = tracer and tracing.leased_tracer(self, tracer)

    @classmethod
    def bind(cls, app: Celery) -> Any:
        """Bind to an app, and install the worker parts there, once.

        Raises:
            LeaseConfigError: The app's ``task_annotations`` remove attributes that the task needs,
                or its ``Request`` cannot be a leased one.
        """
        bound = super().bind(app)
        check_options({option: getattr(cls, option) for option in (*NATURE, STRATEGY)}, cls.name)
        _check_key(cls, cls.name)  # task_annotations may have brought another one
        cls.Request = _own_request(cls)
        if not isinstance(cls.Request, str):
            cls.Request = symbol_by_name(cls.Mixer)(cls.Request, cls.name)
        symbol_by_name(cls.Installer)(app)
        return bound

    def mix_request(self) -> None:
        """Make the task's ``Request`` a leased one; if it is named by its path, import it.

        Raises:
            LeaseConfigError: It cannot be.
        """
        self.Request = symbol_by_name(self.Mixer)(self.Request, self.name)

    def start_strategy(self, app: Celery, consumer: Any, **options: Any) -> Any:
        """As in Celery; the worker makes requests from here on, so their class is made now."""
        self.mix_request()
        return super().start_strategy(app, consumer, **options)

    def apply_async(
        self, args: Any = None, kwargs: Any = None, *positional: Any, **options: Any
    ) -> Any:
        """As in Celery, with further options: the ``lease_*`` settings of the table.

        Raises:
            LeaseConfigError: A ``lease_*`` option is unknown or wrong. Nothing was sent.
        """
        lease = {name: options.pop(name) for name in list(options) if name.startswith("lease_")}
        headers = options.get("headers") or {}
        if lease:
            # A retry brings the options of the call that it repeats.
            merged = {**(headers.get(HEADER) or {}), **lease}
            owner = self.owner_of_options(headers)
            loaded = settings.load(self.app.conf)
            base = settings.task_lease(loaded, lease_options(owner), owner.name)
            settings.call_lease(base, merged, owner.name)
            merged.pop(keys.OPTION, None)  # has a header of its own, with the key made of it
            headers = {**headers, HEADER: merged} if merged else headers
        given = [lease[keys.OPTION]] if keys.OPTION in lease else []
        if given or keys.rule_of(type(self)) is not None:
            headers = keys.with_key(self, headers, given, (args, kwargs))
        if headers:
            options["headers"] = headers
        return super().apply_async(args, kwargs, *positional, **options)

    def owner_of_options(self, headers: Mapping[str, Any]) -> LeasedTask:
        """Return the task whose ``lease_*`` options apply to a message with these *headers*."""
        del headers
        return self

    def map(self, it: Iterable[Any]) -> Any:
        """As in Celery, as one leased task that beats for each item."""
        return symbol_by_name(MAPPING + "mapped")(self, it)

    def starmap(self, it: Iterable[Any]) -> Any:
        """As in Celery, as one leased task that beats for each item."""
        return symbol_by_name(MAPPING + "starmapped")(self, it)

    def chunks(self, it: Iterable[Any], n: int) -> Any:
        """As in Celery, as leased tasks of *n* items each, which beat for each item."""
        return symbol_by_name(MAPPING + "chunked")(self, it, n)

    def signature_from_request(self, *args: Any, **options: Any) -> Any:
        """As in Celery; the lease of this delivery is not part of the next message."""
        signature = super().signature_from_request(*args, **options)
        # If the exchange has a name, Celery copies all of delivery_info, the ticket included.
        signature.options.pop(TICKET, None)
        return signature

    subtask_from_request = signature_from_request

    def retry(self, *args: Any, **options: Any) -> Any:
        """As in Celery, while the lease is held.

        Raises:
            LeaseLost: The lease is gone: its new holder decides on retries. Nothing was sent.
            TaskCancelled: The task was cancelled, and must not be tried again.
        """
        outcome.hold(self)
        return super().retry(*args, **options)

    def replace(self, sig: Any) -> Any:
        """As in Celery, while the lease is held.

        Raises:
            LeaseLost: The lease is gone. Nothing was sent.
            TaskCancelled: The task was cancelled, and its replacement with it.
        """
        outcome.hold(self)
        return super().replace(sig)

    def update_state(self, task_id: str | None = None, *args: Any, **options: Any) -> Any:
        """As in Celery, while the lease is held; later the state is its new holder's.

        Raises:
            LeaseLost: The lease is gone. Nothing was stored. Not with ``lease_on_lost="continue"``,
                where nothing is stored either.
        """
        if not outcome.may_update(task_id):
            return None
        return super().update_state(task_id, *args, **options)


def lease_options(task: Task[Any, Any]) -> dict[str, object]:
    """Return the ``lease_*`` options that a task's author has set."""
    return {
        name: value
        for cls in reversed(type(task).__mro__)
        for name, value in vars(cls).items()
        if name.startswith("lease_")
    }


def _check_key(cls: type[LeasedTask], name: str) -> None:
    """Check the exclusive key of a class that has a function to run.

    Raises:
        LeaseConfigError: Its template names no parameter of that.
    """
    rule = keys.rule_of(cls)
    if rule is not None and inspect.getattr_static(cls, "run") is not Task.run:
        keys.check_rule(rule, cls.run.__get__(cls, cls), name)


def check_options(options: Mapping[str, Any], name: str) -> None:
    """Check the author's options of the task called *name*; other options are Celery's.

    Raises:
        LeaseConfigError: A ``lease_*`` option is unknown or wrong, or removes an attribute that a
            leased task needs.
    """
    faults = [
        Fault(option, options[option], rule, f"remove {option}, {ALSO} or make it a plain task")
        for option, rule in NATURE.items()
        if not options.get(option, True)
    ]
    strategy = options.get(STRATEGY, Task.Strategy)
    if strategy != Task.Strategy:
        rule = (
            "a task with a strategy of its own, as celery-batches' Batches, runs without its lease"
        )
        faults.append(Fault(STRATEGY, strategy, rule, "make it a plain task"))
    if faults:
        raise LeaseConfigError(tuple(faults), f"task {name!r}")
    lease = {option: value for option, value in options.items() if option.startswith("lease_")}
    settings.check_task_options(lease, task=name)


def mixed_base(own: Any, name: str) -> Any:
    """Return a base class for leased tasks that also inherits from a task class.

    Raises:
        LeaseConfigError: It is no task class, or cannot be combined with ``LeasedTask``.
    """
    if not (isinstance(own, type) and issubclass(own, Task)):
        raise _wrong_base(own, "must be a subclass of celery.Task", name)
    if issubclass(own, LeasedTask):
        return own
    check_options({STRATEGY: own.Strategy}, name)
    try:
        return type("LeasedTask", (LeasedTask, own), {"abstract": True, "__module__": __name__})
    except TypeError as exc:
        raise _wrong_base(own, f"cannot be mixed with LeasedTask ({exc})", name) from exc


def _wrong_base(own: object, rule: str, name: str) -> LeaseConfigError:
    hint = "take another base, or make it a plain task"
    return LeaseConfigError((Fault("base", own, rule, hint),), f"task {name!r}")


def _own_request(cls: type[LeasedTask]) -> Any:
    """Return the request class that a task would have without a lease.

    A class that is named by its path is left to the worker, unless it is loaded: other processes do
    not import modules that only workers need.
    """
    owners = (each for each in cls.__mro__ if each is not LeasedTask and "Request" in vars(each))
    own = vars(next(owners))["Request"]
    if own == Task.Request:
        return LeasedTask.Request
    if not isinstance(own, str):
        return own
    module, _, name = own.rpartition(":" if ":" in own else ".")
    return getattr(sys.modules.get(module), name, own)
