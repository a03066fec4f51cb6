"""``@leased_task``: shared by all apps, and each app's own."""

from __future__ import annotations

import importlib
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from celery import Task

from celery_lease import LeaseConfigError, LeasedTask, ToolContext, leased_task
from unit.leased_runs import Delivery, make_app

if TYPE_CHECKING:
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


def test_djangos_namespace_reaches_a_shared_task(tasks: str) -> None:
    """``CELERY_LEASE_*`` in a settings object under ``namespace="CELERY"`` is the app's."""
    from celery_lease import settings
    from celery_lease.task import lease_options

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
