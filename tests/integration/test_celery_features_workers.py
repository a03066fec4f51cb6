"""Leased tasks with other pools, prefetch windows and result backends, and in embedded workers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import celery
import pytest
from celery import chord, signals
from celery.contrib.testing.worker import start_worker

from harness.app_features import register
from harness.clients import client
from harness.setup import Setup
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.brokers import RedisServer
    from harness.workers import WorkerFleet

WAIT = 30.0

#: Pool, settings, result backend (``{url}``: the broker's own database).
WORKERS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "threads, no prefetch limit, redis": ("threads", {"worker_prefetch_multiplier": 0}, "{url}"),
    "prefork, one message each, files": (
        "prefork",
        {"worker_prefetch_multiplier": 1},
        "file://{path}",
    ),
    "prefork, four messages each, rpc": ("prefork", {"worker_prefetch_multiplier": 4}, "rpc://"),
    "threads, no results": ("threads", {}, None),
}
if tuple(map(int, celery.__version__.split(".")[:2])) >= (5, 6):
    WORKERS["prefork, prefetch disabled"] = ("prefork", {"worker_disable_prefetch": True}, "{url}")


@pytest.mark.compat
@pytest.mark.parametrize("name", WORKERS)
def test_leased_tasks_run_in_every_kind_of_worker(
    name: str, valkey: RedisServer, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """More tasks than places, a retry, and a chord where the backend has some: each runs once."""
    pool, conf, backend = WORKERS[name]
    url = valkey.fresh_url()
    backend = backend and backend.format(url=url, path=tmp_path)
    setup = Setup(url, backend, {"lease_extension": 10, **conf})
    with client(setup, register) as app:
        results = [app.tasks["leased.add"].delay(n, n) for n in range(12)]
        for _ in range(12):
            app.tasks["leased.silent"].delay(1)
        fleet.start(setup, WorkerOptions(module="harness.app_features", pool=pool, concurrency=2))
        fleet.ledger.wait("silent", count=12, within=WAIT)
        if backend:
            assert [each.get(timeout=WAIT) for each in results] == [2 * n for n in range(12)]
            # Files are not fenced: as in stock Celery, a RETRY may be stored after SUCCESS.
            again_in = 1 if backend.startswith("file:") else None
            assert app.tasks["leased.retry"].delay(2, again_in).get(timeout=WAIT) == 2
        if backend == url:
            header = [app.tasks["leased.add"].s(n, n) for n in range(4)]
            assert chord(header, app.tasks["leased.total"].s()).delay().get(timeout=WAIT) == 12
    with valkey.client(setup.database) as broker:
        eventually(lambda: not broker.exists("unacked", "unacked_index", "unacked.claims"), WAIT)
    assert fleet.ledger.count("silent") == 12


@pytest.fixture
def own_logging() -> Iterator[None]:
    """An embedded worker sets up the logging of its process, unless somebody else says he does."""

    def leave_it(**_: Any) -> None: ...

    signals.setup_logging.connect(leave_it)
    yield
    signals.setup_logging.disconnect(leave_it)


# A warning in the worker's thread would be the task's failure; redis warns of what celery calls.
@pytest.mark.usefixtures("own_logging")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_embedded_worker_runs_leased_tasks_and_leaves_nothing_behind(
    valkey: RedisServer,
) -> None:
    """``celery.contrib.testing``: a worker in a thread of the test's own process, twice."""
    url = valkey.fresh_url()
    setup = Setup(url, url, {"lease_extension": 10})
    with client(setup, register) as app:
        for _ in range(2):
            with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=WAIT):
                assert app.tasks["by_class"].delay(5).get(timeout=WAIT) == ["child", 5, True, 1]
            eventually(lambda: not _keepers(), WAIT)


def _keepers() -> list[str]:
    return [each.name for each in threading.enumerate() if "celery-lease" in each.name]
