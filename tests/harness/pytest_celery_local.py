"""pytest-celery's nodes as local processes: its fixtures work without a container engine.

A node wants a "container"; :class:`ProcessContainer` is one for a :class:`LocalProcess`. All of
the plugin's own classes stay as they are. pytest-celery talks to a container engine only in
fixtures of its own vendors, which nobody asks for once the nodes come from here.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from celery import __version__ as celery_version
from pytest_celery import CeleryTestBackend, CeleryTestBroker, CeleryTestWorker

from harness.workers import Worker

if TYPE_CHECKING:
    from celery import Celery

    from harness.processes import LocalProcess


class ProcessContainer:
    """What pytest-celery asks of a container, answered by a local process."""

    def __init__(self, process: LocalProcess, url: str = "") -> None:
        self.process = process
        self.celeryconfig = {"url": url, "host_url": url}

    @property
    def id(self) -> str:
        return self.process.mark

    @property
    def name(self) -> str:
        return self.process.log_path.stem

    @property
    def status(self) -> str:
        return "running" if self.process.returncode is None else "exited"

    def ready(self) -> bool:
        """Wait until a worker consumes; a server was waited for when it started."""
        if isinstance(self.process, Worker):
            self.process.wait_ready()
        return self.status == "running"

    def logs(self) -> str:
        return self.process.log

    def kill(self, signal: str | int = signal.SIGKILL) -> None:
        """Send a signal by name or number; return after the end if it is SIGKILL."""
        number = _number(signal)
        self.process.send(number)
        if number == _number("SIGKILL"):
            self.process.wait()

    def reload(self) -> None:
        """Do nothing: a process has no cached state."""

    def restart(self, timeout: float = 20.0) -> None:
        """End the process in an orderly way if it lives, and start it again."""
        if self.status == "running":
            self.process.term()
        self.process.wait(timeout)
        self.process.start()

    def teardown(self) -> None:
        self.process.close()


def _number(name: str | int) -> signal.Signals:
    return signal.Signals[name] if isinstance(name, str) else signal.Signals(name)


class LocalBroker(CeleryTestBroker):  # type: ignore[misc]
    """A broker node; the server belongs to the session and outlives the node."""

    def teardown(self) -> None:
        """Leave the server to its own fixture."""


class LocalBackend(CeleryTestBackend):  # type: ignore[misc]
    """A result backend node; the server belongs to the session and outlives the node."""

    def teardown(self) -> None:
        """Leave the server to its own fixture."""


class LocalWorker(CeleryTestWorker):  # type: ignore[misc]
    """A worker node."""

    def __init__(self, worker: Worker, app: Celery) -> None:
        super().__init__(ProcessContainer(worker), app)
        self.worker = worker

    @property
    def version(self) -> str:
        return celery_version

    @property
    def worker_name(self) -> str:
        return self.worker.hostname.partition("@")[0]

    @property
    def worker_queue(self) -> str:
        return "celery"

    def hostname(self) -> str:
        return self.worker.hostname

    def get_running_processes_info(
        self, columns: list[str] | None = None, filters: dict[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Return what psutil knows about the worker and its children."""
        found = [process.as_dict(attrs=columns) for process in self.worker.family()]
        wanted = (filters or {}).items()
        return [row for row in found if all(row.get(key) == value for key, value in wanted)]
