"""Runs a real ``celery worker`` in a process of its own, for one test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from celery.app.utils import find_app

from celery_lease.core.clock import host_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest
    from celery import Celery

#: Without these options a worker waits a second for its peers, and talks to them.
QUIET_PEERS = ("--without-mingle", "--without-gossip")
#: Celery prefers these variables to an app's configuration.
BROKER = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL")
BACKEND = "CELERY_RESULT_BACKEND"

#: Packages that refer to apps which they do not define.
NO_HOMES = frozenset({"__main__", "celery", "celery_lease"})


class WorkerProcess:
    """One worker of an app at a broker. Use it in a ``with`` block, or :meth:`stop` it."""

    def __init__(
        self,
        app: str,
        broker: str,
        directory: Path,
        *options: str,
        backend: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Describe the worker; :meth:`start` starts it.

        Args:
            app: The argument of ``celery -A``.
            broker: The broker's URL.
            directory: The directory of the log.
            options: Further options of ``celery worker``, such as ``"-P", "threads"``.
            backend: The URL of the result backend; by default the broker's.
            environment: Variables in addition to the test's own.
        """
        self.hostname = f"test-{uuid.uuid4().hex[:8]}@localhost"
        self.app = find_app(app)
        self._log = directory / f"{self.hostname}.log"
        self._command = [sys.executable, "-m", "celery", "-A", app, "worker", "-n", self.hostname]
        self._command += ["-l", "INFO", "-c", "1", *QUIET_PEERS, *options]
        self._environment = {
            **os.environ,
            **_addresses(broker, backend),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0  # characters of the log before the last start

    def start(self, within: float = 60.0) -> Self:
        """Start it, and return when it takes messages.

        Raises:
            RuntimeError: It ended, or was not ready within *within* seconds; the message has its
                log.
        """
        self._began = len(self.log)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  (the user's own app)
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until, pause = host_seconds() + within, threading.Event()
        while f"{self.hostname} ready." not in self.log[self._began :]:
            if self.returncode is not None or host_seconds() > until:
                state = "not ready" if self.returncode is None else f"ended: {self.returncode}"
                self.stop(0)
                raise RuntimeError(f"worker {state}\n{self.log}")
            pause.wait(0.05)
        return self

    @property
    def pid(self) -> int:
        """Process id of its main process; 0 before the start."""
        return 0 if self._process is None else self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code of its main process; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> str:
        """Its whole log."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def kill(self) -> None:
        """Kill only its main process by SIGKILL, as the kernel does when memory runs out."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, within: float = 20.0) -> int | None:
        """Stop it in order, after *within* seconds by force; return its exit code."""
        process = self._process
        if process is None:
            return None
        if within > 0:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(within)
        with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for zombies alone
            os.killpg(process.pid, signal.SIGKILL)  # and its children
        return process.wait()

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def name_of(app: Celery | str) -> str:
    """Return the argument of ``celery -A`` for an app that the test has imported.

    Raises:
        LookupError: It is not a variable of a module.
    """
    if isinstance(app, str):
        return app
    homes = {
        module: name
        for module, contents in list(sys.modules.items())
        for name, value in list(getattr(contents, "__dict__", {}).items())
        if value is app and module.partition(".")[0] not in NO_HOMES
    }
    if homes:
        # The app's own name, or else the module that was imported last: importers come before.
        module = app.main if app.main in homes else list(homes)[-1]
        return f"{module}:{homes[module]}"
    raise LookupError(
        f"{app!r} is no module's variable, so another process cannot import it; move it into a "
        "module, or give the name that celery -A takes"
    )


def redirect(
    app: Celery, broker: str, backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make this process's app use *broker*, and *backend* for results, until the test ends.

    Its existing connections are set aside, and are restored afterwards.
    """
    for name, url in _addresses(broker, backend).items():
        monkeypatch.setenv(name, url)
    monkeypatch.setattr(app, "_pool", None)
    monkeypatch.setattr(app.amqp, "_producer_pool", None)
    monkeypatch.setattr(app, "_backend_cache", None)
    monkeypatch.setattr(app, "_local", threading.local())


def _addresses(broker: str, backend: str | None) -> dict[str, str]:
    return {**dict.fromkeys(BROKER, broker), BACKEND: backend or broker}
