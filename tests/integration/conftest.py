"""pytest-celery's fixtures on local processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from harness.brokers import RedisServer
    from harness.pytest_celery_local import LocalBackend, LocalBroker, LocalWorker
    from harness.setup import Setup
    from harness.workers import WorkerFleet


@pytest.fixture
def celery_broker(valkey: RedisServer, setup: Setup) -> LocalBroker:
    """The session's server as pytest-celery's broker node, not parametrized over vendors."""
    from harness.pytest_celery_local import LocalBroker, ProcessContainer

    return LocalBroker(ProcessContainer(valkey, setup.broker))


@pytest.fixture
def celery_backend(valkey: RedisServer, setup: Setup) -> LocalBackend:
    """The same database as the result backend node."""
    from harness.pytest_celery_local import LocalBackend, ProcessContainer

    return LocalBackend(ProcessContainer(valkey, setup.broker))


@pytest.fixture
def celery_worker(
    setup: Setup, fleet: WorkerFleet, celery_setup_app: Celery
) -> Iterator[LocalWorker]:
    """A real worker process as the worker node."""
    from harness.pytest_celery_local import LocalWorker

    worker = LocalWorker(fleet.start(setup), celery_setup_app)
    yield worker
    worker.teardown()
