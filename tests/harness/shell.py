"""``celery -A proj lease ...`` in the test's own process, and in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, Queue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from celery_lease.cli import lease
from harness.waiting import eventually
from harness.workers import TESTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from harness.setup import Setup

#: Seconds that a thread waits for the main one to run its command.
WAIT = 90.0


def lease_command(setup: Setup, module: str, *args: str) -> str:
    """Run a command in a process of its own; in a thread: click and pytest both swap stdout."""
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", module, "lease", *args],
        env={**os.environ, **setup.env(), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Shell:
    """Runs ``celery -A proj lease`` in the test's process, with an app of the test's own."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def fails(self, *args: str) -> str:
        """Run a command that has to fail and return what it said."""
        result = self.result(*args)
        assert result.exit_code, result.output
        return str(result.output)

    def __call__(self, *args: str, **options: Any) -> str:
        result = self._run(args, **options)
        assert result.exit_code == 0, result.output
        return str(result.output)

    def until(self, words: str, *args: str, within: float = 60.0) -> str:
        """Repeat a command until it says *words*: a busy worker may answer too late; return all."""
        said = ""

        def says() -> bool:
            nonlocal said
            said = self(*args)
            return words in said

        eventually(says, within, what=lambda: f"{words!r} in {said[-2000:]}")
        return said

    def result(self, *args: str, **options: Any) -> Any:
        """Run a command and return all of what came of it; no error but click's is expected."""
        result = self._run(args, **options)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result

    def _run(self, args: tuple[str, ...], **options: Any) -> Any:
        return CliRunner().invoke(lease, args, obj=SimpleNamespace(app=self.app), **options)


class Commands:
    """Runs ``celery lease`` commands of other threads in the main one.

    Click's runner swaps the process's stdout, and so does pytest, between tests.
    """

    def __init__(self) -> None:
        self._asked: Queue[tuple[Celery, tuple[str, ...], Future[Any]]] = Queue()

    def run(self, app: Celery, *arguments: str) -> Any:
        """Have a command run and return what came of it."""
        future: Future[Any] = Future()
        self._asked.put((app, arguments, future))
        return future.result(WAIT)

    def serve(self, done: Callable[[], bool]) -> None:
        """Run what is asked for until *done*; for the main thread."""
        while not done():
            with suppress(Empty):
                app, arguments, future = self._asked.get(timeout=0.1)
                try:
                    future.set_result(Shell(app).result(*arguments))
                except BaseException as exc:  # noqa: BLE001  (raised again by who asks)
                    future.set_exception(exc)
