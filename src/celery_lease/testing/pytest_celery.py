"""pytest-celery's nodes as local processes: its fixtures need no container engine.

Import its fixtures in a ``conftest.py``, beside a fixture ``lease_app`` that returns the argument
of ``celery -A``. ``celery_setup`` then has a real worker of that app, at ``lease_broker``. A node
needs a container; :class:`ProcessContainer` is one for a process. pytest-celery's own classes are
unchanged: it uses a container engine only in fixtures of its own vendors, which are not requested
if the nodes come from here.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from celery import Celery, __version__ as celery_version
from pytest_celery import CeleryTestBackend, CeleryTestBroker, CeleryTestWorker

from celery_lease.testing.worker import WorkerProcess, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


__all__ = ["celery_backend", "celery_broker", "celery_worker"]


class UrlContainer:
    """The interface of a container for pytest-celery, for a server of another fixture."""

    id = name = "embedded"
    status = "running"

    def __init__(self, url: str) -> None:
        self.celeryconfig = {"url": url, "host_url": url}

    def ready(self) -> bool:
        """Return True: the fixture has waited for it."""
        return True

    def teardown(self) -> None:
        """Leave the server to its own fixture."""


class ProcessContainer:
    """The interface of a container for a worker's process."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process

    @property
    def id(self) -> str:
        return self.process.hostname

    @property
    def name(self) -> str:
        return self.process.hostname

    @property
    def status(self) -> str:
        return "running" if self.process.returncode is None else "exited"

    def ready(self) -> bool:
        """Whether it runs; its start has waited until it was ready."""
        return self.status == "running"

    def logs(self) -> str:
        return self.process.log

    def kill(self, signal: str | int = signal.SIGKILL) -> None:
        """Send the main process a signal by name or number; after SIGKILL wait for its end."""
        number = _number(signal)
        if number == _number("SIGKILL"):
            self.process.kill()
        else:
            os.kill(self.process.pid, number)

    def reload(self) -> None:
        """Do nothing: a process has no cached state."""

    def restart(self, timeout: float = 20.0) -> None:
        """End it in order if it runs, after *timeout* seconds by force; start it again."""
        self.process.stop(timeout)
        self.process.start()

    def teardown(self) -> None:
        self.process.stop()


def _number(name: str | int) -> signal.Signals:
    return signal.Signals[name] if isinstance(name, str) else signal.Signals(name)


class LocalBroker(CeleryTestBroker):  # type: ignore[misc]
    """A broker node."""

    def teardown(self) -> None:
        """Leave the server to its own fixture."""


class LocalBackend(CeleryTestBackend):  # type: ignore[misc]
    """A result backend node."""

    def teardown(self) -> None:
        """Leave the server to its own fixture."""


class LocalWorker(CeleryTestWorker):  # type: ignore[misc]
    """A worker node."""

    def __init__(self, process: WorkerProcess, app: Celery) -> None:
        super().__init__(ProcessContainer(process), app)
        self.process = process

    @property
    def version(self) -> str:
        return celery_version

    @property
    def worker_name(self) -> str:
        return self.process.hostname.partition("@")[0]

    @property
    def worker_queue(self) -> str:
        return "celery"

    def hostname(self) -> str:
        return self.process.hostname

    def get_running_processes_info(
        self, columns: list[str] | None = None, filters: dict[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Return the facts of psutil about the worker and its children."""
        main = psutil.Process(self.process.pid)
        found = [each.as_dict(attrs=columns) for each in (main, *main.children(recursive=True))]
        wanted = (filters or {}).items()
        return [row for row in found if all(row.get(key) == value for key, value in wanted)]


@pytest.fixture
def celery_broker(lease_broker: str) -> LocalBroker:
    """The embedded broker as pytest-celery's broker node, not parametrized over vendors."""
    return LocalBroker(UrlContainer(lease_broker))


@pytest.fixture
def celery_backend(lease_backend: str) -> LocalBackend:
    """The result backend node."""
    return LocalBackend(UrlContainer(lease_backend))


@pytest.fixture
def celery_worker(
    lease_app: Celery | str,
    lease_broker: str,
    lease_backend: str,
    celery_setup_app: Celery,
    tmp_path: Path,
) -> Iterator[LocalWorker]:
    """A real worker of ``lease_app`` as the worker node."""
    process = WorkerProcess(name_of(lease_app), lease_broker, tmp_path, backend=lease_backend)
    worker = LocalWorker(process.start(), celery_setup_app)
    yield worker
    worker.teardown()
    print(process.log)  # noqa: T201  (for pytest's report)
