"""A request class of an author's own on a leased task: both at once, whichever way it came."""

from __future__ import annotations

import sys
import uuid
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock, Mock

import pytest
from celery import Celery, Task, shared_task
from celery.utils.imports import symbol_by_name
from celery.worker.request import Request

import celery_lease
from celery_lease import LeaseConfigError, LeasedTask, leased_task, settings
from celery_lease.worker.policies import Policies
from celery_lease.worker.request import LeasedRequest
from unit.leased_runs import make_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class BuildRequest(Request):
    """An author's own, as in Read the Docs."""

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        """Note it, and go on."""
        seen.append("accepted")
        super().on_accepted(pid, time_accepted)


class BuildTask(Task):
    """A plain task class with a request class."""

    abstract = True
    Request = BuildRequest


seen: list[str] = []
PATH = "own_requests:BuildRequest"


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that has the class, for those who name it."""
    module = ModuleType("own_requests")
    module.BuildRequest = BuildRequest  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_requests", module)
    seen.clear()
    yield module
    seen.clear()


def run() -> None: ...


@pytest.fixture(autouse=True)
def _no_shared_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other tests' modules would be mixed, or refused, before the test's own."""
    monkeypatch.setattr("celery._state._on_app_finalizers", set())


def declared(app: Celery, **options: Any) -> Any:
    return app.task(
        **{"base": LeasedTask, "shared": False, "lazy": False, "name": "own", **options}
    )(run)


def by_option(value: Any) -> Any:
    return declared(make_app(), Request=value)


def by_base(value: Any) -> Any:
    base = type("Base", (LeasedTask,), {"abstract": True, "Request": value})
    return declared(make_app(), base=base)


def by_plain_base(value: Any) -> Any:
    base = type("Base", (Task,), {"abstract": True, "Request": value})
    app = make_app()
    leased_task(base=base, name="own")(run)
    return app.tasks["own"]


def by_task_class(value: Any) -> Any:
    base = type("Base", (Task,), {"abstract": True, "Request": value})
    return declared(make_app(task_cls=base))


def by_task_class_and_decorator(value: Any) -> Any:
    app = make_app(task_cls=type("Base", (Task,), {"abstract": True, "Request": value}))
    leased_task(name="own")(run)
    return app.tasks["own"]


def by_task_of_app(value: Any) -> Any:
    app = make_app()
    app.Task = type("Base", (Task,), {"abstract": True, "Request": value})
    return declared(app)


def by_subclassed_app(value: Any) -> Any:
    own = type("Base", (Task,), {"abstract": True, "Request": value})
    app = type("App", (Celery,), {"task_cls": own})("unit", set_as_current=False)
    return declared(app)


def by_shared_task(value: Any) -> Any:
    app = make_app()
    shared_task(base=LeasedTask, name="own", Request=value)(run)
    return app.tasks["own"]


def by_class(value: Any) -> Any:
    namespace = {"name": "own", "run": lambda _self: None, "Request": value}
    return make_app().register_task(type("Own", (LeasedTask,), namespace)())


def by_classes(value: Any) -> Any:
    plain = type("Base", (Task,), {"abstract": True, "Request": value})
    namespace = {"name": "own", "run": lambda _self: None}
    return make_app().register_task(type("Own", (plain, LeasedTask), namespace)())


def by_annotation(value: Any) -> Any:
    app = make_app()
    app.conf.task_annotations = {"own": {"Request": value}}
    return declared(app)


WAYS = [
    by_option,
    by_base,
    by_plain_base,
    by_task_class,
    by_task_class_and_decorator,
    by_task_of_app,
    by_subclassed_app,
    by_shared_task,
    by_class,
    by_classes,
    by_annotation,
]


def request_class(task: Any) -> Any:
    """Return what a worker's strategy takes."""
    return symbol_by_name(task.Request)


@pytest.mark.parametrize("value", [PATH, BuildRequest], ids=["named", "class"])
@pytest.mark.parametrize("way", WAYS)
def test_an_own_request_class_and_the_lease_are_both_there(
    way: Callable[[Any], Any], value: Any
) -> None:
    """One class is mixed from both, the lease's part first, so that no override bypasses it."""
    task = way(value)
    found = request_class(task)
    assert issubclass(found, BuildRequest)
    assert found.__mro__.index(LeasedRequest) < found.__mro__.index(BuildRequest)
    assert isinstance(task, LeasedTask)


def test_a_named_class_is_not_imported_before_a_worker_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client does not import what only workers use; it may also be defined after the task."""
    made = sys.modules.pop("own_requests")
    task = by_option(PATH)
    assert task.Request == PATH
    monkeypatch.setitem(sys.modules, "own_requests", made)
    task.start_strategy(task.app, worker())
    assert issubclass(request_class(task), LeasedRequest)
    assert issubclass(request_class(task), BuildRequest)


def worker() -> Any:
    """Return as much of a worker's consumer as Celery's strategy reads when it is made."""
    return MagicMock(
        hostname="w@unit", event_dispatcher=None, pool=SimpleNamespace(apply_async=Mock())
    )


def test_one_that_is_set_after_the_app_is_ready_is_mixed_when_the_worker_starts() -> None:
    """As by an instrumentation that sets ``task.Request``."""
    task = by_option(Task.Request)
    task.Request = BuildRequest
    task.start_strategy(task.app, worker())
    assert issubclass(request_class(task), LeasedRequest)
    assert issubclass(request_class(task), BuildRequest)


def test_a_strategys_requests_are_of_the_mixed_class() -> None:
    """What Celery makes of a message both begins its lease and calls the author's method."""
    task = by_option(BuildRequest)
    made: list[Any] = []
    consumer = worker()
    consumer.on_task_request = made.append
    consumer.controller.state.revoked = set()
    consumer.disable_rate_limits = True
    handle = task.start_strategy(task.app, consumer)
    headers = {"id": uuid.uuid4().hex, "task": "own"}
    lease = Mock(entry=None, fault=None)
    message = Mock(headers=headers, properties={}, delivery_info={}, lease=lease)
    message.body, message.content_type, message.content_encoding = b"[[], {}, {}]", "json", "utf-8"
    message.payload = ([], {}, {})
    handle(message, None, Mock(), Mock(), ())
    (request,) = made
    request.execute_using_pool(consumer.pool)
    assert lease.leases.start.call_count == 1
    request.on_accepted(1, 1.0)
    assert seen == ["accepted"]
    request.acknowledge()
    assert lease.leases.complete.called


@pytest.mark.parametrize("value", ["celery.worker.request:Request", Request, Task.Request])
def test_celerys_own_class_means_a_leased_request(value: Any) -> None:
    """There is nothing to mix."""
    assert request_class(by_option(value)) is LeasedRequest


def test_a_leased_request_of_ones_own_is_taken_as_it_is() -> None:
    """``LeasedRequest`` is public, to inherit from."""

    class Own(celery_lease.LeasedRequest):
        pass

    assert request_class(by_option(Own)) is Own
    assert celery_lease.LeasedRequest is LeasedRequest


def test_the_class_of_the_task_counts_for_more_than_that_of_the_app() -> None:
    """As in Celery, the nearest one is the one."""

    class Other(Request):
        pass

    app = make_app(task_cls=BuildTask)
    found = request_class(declared(app, Request=Other))
    assert issubclass(found, Other)
    assert not issubclass(found, BuildRequest)


class Foreign:
    """No request."""


class Stubborn(type):
    """A metaclass that takes no second base."""

    def __new__(cls, name: str, bases: Any, namespace: Any) -> Any:
        """Refuse."""
        if len(bases) > 1:
            raise TypeError("one base only")
        return super().__new__(cls, name, bases, namespace)


class Alone(Request, metaclass=Stubborn):
    """A request class that cannot be mixed."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [Foreign, Alone, 5, run], ids=["foreign", "alone", "int", "def"])
def test_what_cannot_be_mixed_is_refused_where_it_is_bound(
    way: Callable[[Any], Any], value: Any
) -> None:
    """The error names the task, the class and what to do."""
    with pytest.raises(LeaseConfigError, match=r"Request = .*LeasedRequest") as raised:
        way(value)
    assert "'own'" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("path", ["own_requests:Nowhere", "no_such_module:Any", "own_requests:run"])
def test_a_name_that_leads_nowhere_is_refused_when_the_worker_starts(
    path: str, module: ModuleType
) -> None:
    """Together with whatever else is wrong, in one line."""
    module.run = run  # type: ignore[attr-defined]
    app = make_app()
    with pytest.raises(LeaseConfigError, match=r"Request = .*LeasedRequest") as raised:
        declared(app, Request=path)
        Policies(app, settings.load(app.conf)).check()
    assert "'own'" in str(raised.value)
