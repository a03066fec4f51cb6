"""What unit tests share: a worker's leases, and no tasks of each other or of other suites."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest
from celery import _state
from celery.worker import state

from unit.fake_broker import Bench
from unit.leased_runs import Delivery, make_app, sent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery


def _module_of(finalizer: Any) -> str:
    """Return where a shared task's function is from; Celery knows a task by what makes it."""
    held = [cell.cell_contents for cell in finalizer.__closure__ or ()]
    functions = [each for each in held if isinstance(each, FunctionType)]
    return str((functions or [finalizer])[0].__module__)


@pytest.fixture(autouse=True)
def _own_shared_tasks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Celery registers every task with all apps to come: have a test see its module's alone."""
    before = set(_state._on_app_finalizers)
    for each in before:
        if _module_of(each) != request.module.__name__ and not _module_of(each).startswith(
            "celery"
        ):
            _state._on_app_finalizers.discard(each)
    yield
    _state._on_app_finalizers.clear()
    _state._on_app_finalizers.update(before)


@pytest.fixture(autouse=True)
def _own_worker_state() -> Iterator[None]:
    """Celery keeps the requests of a worker in its module: no test leaves some to the next one."""
    yield
    for each in (state.requests, state.reserved_requests, state.active_requests, state.revoked):
        each.clear()


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A worker's leases on a fake broker: of 10 s, extended every 2 s at most."""
    bench = Bench()
    yield bench
    bench.leases.close()


@pytest.fixture
def app() -> Celery:
    """An app of one test; its broker is the process's, and empty."""
    app = make_app()
    sent(app)
    return app


@pytest.fixture
def delivery(monkeypatch: pytest.MonkeyPatch) -> Delivery:
    """A delivery whose lease is held."""
    return Delivery(monkeypatch)
