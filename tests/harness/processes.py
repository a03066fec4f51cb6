"""A subprocess that never outlives the test session, and its children neither."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import subprocess
import uuid
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil

from harness import forkserver
from harness.forkserver import MARK, Fork
from harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class LocalProcess:
    """One process in a process group of its own, logging to a file.

    Its environment carries a mark, which children inherit: :meth:`close` finds by it also those
    that left the group or lost their parent.
    """

    def __init__(
        self, command: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None
    ) -> None:
        self.command = list(command)
        self.log_path = log
        self.mark = uuid.uuid4().hex
        self.env = {**os.environ, **(env or {}), MARK: self.mark}
        self._process: subprocess.Popen[bytes] | Fork | None = None
        _started.add(self)

    def start(self) -> Self:
        """Start, or start again after an end; the log goes on in the same file."""
        if forkserver.fits(self.command, self.env):
            self._process = forkserver.server(self.command).start(
                self.command, self.env, self.log_path
            )
            return self
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.env,
                start_new_session=True,
            )
        return self

    @property
    def process(self) -> subprocess.Popen[bytes] | Fork:
        """The process that was started last."""
        if self._process is None:
            message = f"{self.command[0]} was not started"
            raise RuntimeError(message)
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended (negative: by this signal); None while it lives."""
        return self.process.poll()

    @property
    def log(self) -> str:
        """Everything it wrote to stdout and stderr so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def wait_log(self, text: str, within: float = 60.0) -> Self:
        """Return once ``text`` stands in the log, or fail with the log if it ended before."""
        eventually(lambda: self._has_logged(text), within, what=f"log line {text!r} of {self.log}")
        return self

    def _has_logged(self, text: str) -> bool:
        ended = self.returncode is not None  # read before the log: the last line may be the one
        found = text in self.log
        assert found or not ended, f"ended with {self.returncode}, without {text!r}:\n{self.log}"
        return found

    def wait(self, within: float = 20.0) -> int:
        """Return the exit status, or fail if it is still alive after ``within`` seconds."""
        eventually(lambda: self.returncode is not None, within, what=f"end of {self.command[0]}")
        status = self.returncode
        assert status is not None
        return status

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        self.process.send_signal(number)

    def send_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and all its children, which have groups of their own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)
        for process in list(self.family()):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(process.pid) != self.pid:
                    process.send_signal(number)

    def term(self) -> None:
        """SIGTERM to the process alone, as an orchestrator does."""
        self.send(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the process alone, as the kernel does when memory runs out."""
        self.send(signal.SIGKILL)

    def kill_group(self) -> None:
        """SIGKILL to process and children, as when the host is lost."""
        self.send_group(signal.SIGKILL)

    def stop(self) -> None:
        """Pause the process alone."""
        self.send(signal.SIGSTOP)

    def cont(self) -> None:
        """Let the process go on."""
        self.send(signal.SIGCONT)

    def stop_group(self) -> None:
        """Pause process and children, as when the host is suspended."""
        self.send_group(signal.SIGSTOP)

    def cont_group(self) -> None:
        """Let process and children go on."""
        self.send_group(signal.SIGCONT)

    def family(self) -> Iterator[psutil.Process]:
        """Yield every living process that carries this one's mark."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark:
                    yield process

    def computed(self) -> float:
        """Return the seconds of processors that it and its children have used.

        Of living ones by the scheduler, of ended ones by the system's ticks.
        """
        main = psutil.Process(self.pid)
        lived = 0
        for process in (main, *main.children(recursive=True)):
            with contextlib.suppress(OSError, ValueError):  # it ends, or its thread
                for thread in Path(f"/proc/{process.pid}/task").iterdir():
                    lived += int((thread / "schedstat").read_text().split()[0])
        times = main.cpu_times()
        return lived / 1e9 + times.children_user + times.children_system

    def close(self) -> None:
        """End the process and everything that came of it, whatever state they are in."""
        if self._process is None:
            return
        self.kill_group()
        self._process.wait(10)
        for process in self.family():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        gc.collect()  # a dead AsyncResult asks its backend, which may be this process
        self.close()


_started: weakref.WeakSet[LocalProcess] = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """End what is left when a session ends without its fixtures' teardown."""
    for process in list(_started):
        process.close()
    forkserver.close()
