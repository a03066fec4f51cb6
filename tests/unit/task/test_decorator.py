"""``@leased_task``: shared by all apps, and each app's own."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import weakref
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from celery import Celery, Task, shared_task

from celery_lease import LeaseConfigError, LeasedTask, ToolContext, leased_task
from unit.leased_runs import Delivery, make_app

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TASKS = '''
from __future__ import annotations
from typing import TYPE_CHECKING
from celery_lease import leased_task
if TYPE_CHECKING:
    from celery_lease import ToolContext

@leased_task
def bare(x: int, *, context: ToolContext) -> tuple[int, bool]:
    """Say what it does."""
    return x, context.leased

@leased_task(bind=True, name="named", lease_extension=120, max_retries=9)
def bound(self, x: int, *, context: ToolContext) -> tuple[str, int, bool]:
    return self.name, x, context.leased
'''


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of shared tasks that no app has seen, as a library brings it."""
    # Other tests' apps would get these tasks as well.
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
    monkeypatch.setattr("celery._state._apps", weakref.WeakSet())
    package = f"shared_{tmp_path.name.replace('-', '_')}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    (tmp_path / package / "tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[name]


def test_a_shared_task_belongs_to_apps_made_before_and_after(tasks: str) -> None:
    """Two apps in one process each have the task, bound to themselves and installed."""
    before = make_app("before")
    before.finalize()
    module = importlib.import_module(f"{tasks}.tasks")
    after = make_app("after")
    for app in (before, after):
        task = app.tasks["named"]
        assert task.app is app
        assert task.max_retries == 9
        assert isinstance(task, LeasedTask)
        assert any("celery_lease" in str(step) for step in app.steps["consumer"])
    after.set_current()
    assert module.bound.app is after
    before.set_current()
    assert module.bound.app is before


def test_a_shared_task_is_called_and_described_as_its_function(tasks: str) -> None:
    """The decorated name is a task of the current app, and a function."""
    app = make_app()
    app.set_current()
    module = importlib.import_module(f"{tasks}.tasks")
    assert module.bare(1) == (1, False)
    assert module.bound(1) == ("named", 1, False)
    assert module.bare.name == f"{tasks}.tasks.bare"
    assert module.bare.__doc__ == "Say what it does."
    with pytest.raises(TypeError):
        module.bare.delay()
    assert module.bound.s(1).apply().get() == ("named", 1, False)


def test_autodiscovery_finds_leased_tasks(tasks: str) -> None:
    """``autodiscover_tasks`` imports the module, which is all there is to do."""
    app = make_app()
    app.autodiscover_tasks([tasks], force=True)
    assert f"{tasks}.tasks.bare" in app.tasks
    assert any("celery_lease" in str(step) for step in app.steps["consumer"])


def test_a_shared_task_also_inherits_from_the_apps_own_task_class(
    tasks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flask's pattern: an app's tasks run inside its own ``__call__``, leased or not."""
    entered = []

    class ContextTask(Task):
        acks_late = False

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            entered.append(self.name)
            return self.run(*args, **kwargs)

    app = make_app(task_cls=ContextTask)
    app.set_current()
    module = importlib.import_module(f"{tasks}.tasks")
    task = app.tasks["named"]
    assert task.acks_late is True
    assert module.bound(1) == ("named", 1, False)
    assert Delivery(monkeypatch).trace(task, 1).retval == ("named", 1, True)
    assert entered == ["named", "named"]


def test_an_app_whose_task_class_is_leased_keeps_it(tasks: str) -> None:
    """``task_cls=LeasedTask``, or one that inherits from it, is the base class as it is."""

    class Own(LeasedTask):
        abstract = True
        lease_interval = 7

    app = make_app(task_cls=Own)
    importlib.import_module(f"{tasks}.tasks")
    assert type(app.tasks["named"]).__mro__.count(LeasedTask) == 1
    assert app.tasks["named"].lease_interval == 7
    app = make_app(task_cls="celery_lease:LeasedTask")
    assert isinstance(app.tasks["named"], LeasedTask)


def test_a_base_class_of_ones_own_is_taken(tasks: str) -> None:
    """``base=`` has the last word, as in Celery."""

    class Own(LeasedTask):
        abstract = True

    @leased_task(base=Own, name=f"{tasks}.own")
    def own(*, context: ToolContext) -> bool:
        return context.leased

    app = make_app()
    assert isinstance(app.tasks[f"{tasks}.own"], Own)


async def coroutine() -> None: ...


async def async_generator() -> Any:
    yield


def generator() -> Any:
    yield


FUTILE = [coroutine, async_generator, generator]


@pytest.mark.parametrize("function", FUTILE)
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.usefixtures("tasks")
def test_a_function_that_a_call_does_not_run_is_refused_where_it_is_written(
    function: Any, *, bare: bool
) -> None:
    """``async def`` returns a coroutine that no pool awaits: the task would fail each time.

    Failed before with: did not raise.
    """
    with pytest.raises(LeaseConfigError, match=r"run = .*(asyncio\.run|a list)") as raised:
        leased_task(function) if bare else leased_task(name="wrong")(function)
    assert (function.__name__ if bare else "'wrong'") in str(raised.value)
    make_app().finalize()


class PlainBase(Task):
    """A plain task class, as projects have one for logging or locks."""

    abstract = True
    max_retries = 77

    def apply_async(self, *args: Any, **options: Any) -> Any:
        """Note the call, and go on."""
        calls.append(options)
        return super().apply_async(*args, **options)


calls: list[Any] = []


def test_a_plain_base_class_becomes_a_leased_one(
    tasks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``@leased_task(base=X)`` is ``@shared_task(base=X)`` with a lease: nothing of X is lost.

    Failed before with: ``'PlainBase' object has no attribute`` of a leased task, and no lease.
    """

    @leased_task(base=PlainBase, name=f"{tasks}.own")
    def own(*, context: ToolContext) -> bool:
        return context.leased

    app = make_app()
    task = app.tasks[f"{tasks}.own"]
    assert isinstance(task, LeasedTask)
    assert isinstance(task, PlainBase)
    assert (task.max_retries, task.acks_late) == (77, True)
    assert Delivery(monkeypatch).trace(task).retval is True
    calls.clear()
    task.apply_async(lease_extension=50)
    assert calls[0]["headers"] == {"lease": {"lease_extension": 50}}
    assert not isinstance(task, app.Task)  # base= replaces it, as in Celery


@pytest.mark.parametrize("base", [int, 5, "celery:Task", print])
@pytest.mark.usefixtures("tasks")
def test_a_base_that_is_no_task_class_is_refused_where_it_is_written(base: Any) -> None:
    """At import, with the task's name."""
    with pytest.raises(LeaseConfigError, match=r"'wrong'.*base = .*celery\.Task"):
        leased_task(name="wrong", base=base)(print)


@pytest.mark.usefixtures("tasks")
def test_a_base_that_goes_with_no_other_is_refused_where_it_is_written() -> None:
    """Two classes that list their bases in different orders."""

    class A(Task): ...

    class Contrary(A, metaclass=_Alone): ...

    with pytest.raises(LeaseConfigError, match=r"'wrong'.*Contrary.*one base only"):
        leased_task(name="wrong", base=Contrary)(print)


class _Alone(type):
    """A metaclass that takes no second base."""

    def __new__(cls, name: str, bases: Any, namespace: Any) -> Any:
        """Refuse."""
        if len(bases) > 1:
            raise TypeError("one base only")
        return super().__new__(cls, name, bases, namespace)


class CommitTask(Task):
    """What Django or Flask put into an app's task class."""

    abstract = True
    called: ClassVar[list[str]] = []

    def delay_on_commit(self, *args: Any) -> Any:
        """Stand for Django's."""
        return self.delay(*args)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run in an application's context, as Flask's."""
        self.called.append(self.name)
        return super().__call__(*args, **kwargs)


class OwnTask(CommitTask):
    """The same with a default of its own."""

    abstract = True
    acks_late = False


def task_cls(path: str) -> Celery:
    return make_app(task_cls=f"{path}:OwnTask")


def subclassed(_: str) -> Celery:
    own: Any = type("App", (Celery,), {"task_cls": OwnTask})
    return own("unit", broker="memory://", backend="cache+memory://", set_as_current=False)


def assigned(_: str) -> Celery:
    app = make_app()
    app.Task = OwnTask
    return app


@pytest.mark.parametrize("own_app", [task_cls, subclassed, assigned])
@pytest.mark.parametrize("how", ["task", "lazy", "shared_task", "leased_task"])
def test_leased_task_as_a_base_takes_nothing_of_the_apps_own_task_class(
    tasks: str, monkeypatch: pytest.MonkeyPatch, own_app: Callable[[str], Celery], how: str
) -> None:
    """``delay_on_commit`` is still there, and so is the lease.

    Failed before with: no attribute 'delay_on_commit' (all but ``leased_task``).
    """
    monkeypatch.setitem(sys.modules, tasks, ModuleType(tasks))
    vars(sys.modules[tasks])["OwnTask"] = OwnTask
    app = own_app(tasks)

    def own(*, context: ToolContext) -> bool:
        return context.leased

    {
        "task": partial(app.task, base=LeasedTask, name="own", lazy=False),
        "lazy": partial(app.task, base=LeasedTask, name="own"),
        "shared_task": partial(shared_task, base=LeasedTask, name="own"),
        "leased_task": partial(leased_task, name="own"),
    }[how]()(own)
    task = app.tasks["own"]
    assert callable(task.delay_on_commit)
    assert (isinstance(task, LeasedTask), task.acks_late) == (True, True)
    OwnTask.called.clear()
    assert Delivery(monkeypatch).trace(task).retval is True
    assert OwnTask.called == ["own"]


@pytest.mark.parametrize("order", [(LeasedTask, CommitTask), (CommitTask, LeasedTask)])
@pytest.mark.parametrize("of_app", [False, True])
def test_a_class_based_task_may_inherit_from_both(
    monkeypatch: pytest.MonkeyPatch, order: tuple[type, type], *, of_app: bool
) -> None:
    """In either order, from the class itself or from ``app.Task``; as in Celery, by its author."""
    app = make_app(task_cls=CommitTask)
    bases = tuple(app.Task if of_app and each is CommitTask else each for each in order)
    own: Any = type("Own", bases, {"name": "own", "run": lambda _, *, context: context.leased})
    task = app.register_task(own())
    assert callable(task.delay_on_commit)
    assert task.acks_late is True
    assert Delivery(monkeypatch).trace(task).retval is True


def test_djangos_own_task_class_stays(tmp_path: Path) -> None:
    """With Django's fixup installed, in a process of its own: every way has ``delay_on_commit``."""
    program = """
import os, sys
sys.path.insert(0, os.getcwd())
from celery import Celery, shared_task
from celery_lease import LeasedTask, leased_task
app = Celery("p", broker="memory://")
assert app.task_cls == "celery.contrib.django.task:DjangoTask"
from celery.contrib.django.task import DjangoTask
def run(): ...
class Own(LeasedTask, DjangoTask):
    name = "d"
    def run(self): ...
app.task(base=LeasedTask, name="a")(run)
shared_task(base=LeasedTask, name="b")(run)
leased_task(name="c")(run)
app.register_task(Own())
for name in "abcd":
    task = app.tasks[name]
    assert isinstance(task, LeasedTask) and task.acks_late, name
    assert task.delay_on_commit and task.apply_async_on_commit, name
print("all there")
"""
    pytest.importorskip("django")
    (tmp_path / "conf.py").write_text("SECRET_KEY = 'x'\nINSTALLED_APPS = []\n")
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "conf"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout.strip(), ran.returncode) == ("all there", 0), ran.stderr


def test_djangos_namespace_reaches_a_shared_task(tasks: str) -> None:
    """``CELERY_LEASE_*`` in a settings object under ``namespace="CELERY"`` is the app's."""
    from celery_lease import settings
    from celery_lease.task.task import lease_options

    app = make_app()
    app.config_from_object({"CELERY_LEASE_EXTENSION": 90}, namespace="CELERY")
    importlib.import_module(f"{tasks}.tasks")
    loaded = settings.load(app.conf)
    assert loaded.policy.extension == 90
    named = app.tasks["named"]
    assert settings.task_lease(loaded, lease_options(named), "named").policy.extension == 120


@pytest.mark.parametrize("misuse", [(1,), ("name",), (print, print)])
def test_the_decorator_takes_keywords_only(misuse: tuple[Any, ...]) -> None:
    """As ``@leased_task("name")``, which is a name nowhere."""
    with pytest.raises(TypeError, match="keyword options"):
        leased_task(*misuse)


@pytest.mark.parametrize("option", [{"lease_extenson": 5}, {"acks_late": False}])
@pytest.mark.usefixtures("tasks")
def test_a_wrong_option_is_told_where_it_is_written(option: dict[str, Any]) -> None:
    """At import, not when the first app is made ready."""
    with pytest.raises(LeaseConfigError, match="'wrong'"):
        leased_task(name="wrong", **option)(print)
    make_app().finalize()
