"""Run a command for a task, with its output as the proof of progress."""

from __future__ import annotations

import math
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery_lease.core.clock import SystemClock

if TYPE_CHECKING:
    from celery_lease.context import ToolContext

#: Seconds between two looks at the lease while the command runs.
LOOK_INTERVAL = 0.2
#: Seconds between asking a command to end and killing it.
GRACE = 5.0
CHUNK = 65536


def run(
    context: ToolContext,
    command: str | list[str],
    *,
    input: str | bytes | None,  # noqa: A002  (subprocess.run's name for it)
    check: bool,
    timeout: float | None,
    **popen: Any,
) -> subprocess.CompletedProcess[Any]:
    """See :meth:`celery_lease.ToolContext.run`."""
    context.beat()
    popen.setdefault("stdout", subprocess.PIPE)
    popen.setdefault("stderr", subprocess.PIPE)
    if input is not None:
        popen["stdin"] = subprocess.PIPE
    with subprocess.Popen(command, **popen) as process:
        pumps = _Pumps(process, input)
        try:
            _watch(context, process, pumps, timeout)
        except BaseException:
            _end(process)
            raise
        output, errors = pumps.results()
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, output, errors)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


class _Pumps:
    """Threads that read a process's output. They only count what arrives; they never beat."""

    def __init__(self, process: subprocess.Popen[Any], text: str | bytes | None) -> None:
        self.arrived = threading.Event()
        self._empty: Any = "" if process.text_mode else b""  # type: ignore[attr-defined]
        self._kept: dict[str, list[Any]] = {}
        self._threads: list[threading.Thread] = []
        for name in ("stdout", "stderr"):
            stream = getattr(process, name)
            if stream is not None:
                self._kept[name] = []
                self._start(self._read, stream, self._kept[name])
        if process.stdin is not None:
            self._start(self._write, process.stdin, text)

    def _start(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _read(self, stream: Any, kept: list[Any]) -> None:
        read = getattr(stream, "read1", None) or (lambda _: stream.readline())
        with suppress(ValueError):  # closed under us, when the command was ended
            while chunk := read(CHUNK):
                kept.append(chunk)
                self.arrived.set()

    def _write(self, stream: Any, text: Any) -> None:
        with suppress(BrokenPipeError, ValueError), stream:
            if text:
                stream.write(text)

    @property
    def done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def results(self) -> tuple[Any, Any]:
        """Return what was read from stdout and stderr, None where nothing was captured."""
        for thread in self._threads:
            thread.join()
        return self._joined("stdout"), self._joined("stderr")

    def _joined(self, name: str) -> Any:
        chunks = self._kept.get(name)
        return None if chunks is None else self._empty.join(chunks)


def _watch(
    context: ToolContext,
    process: subprocess.Popen[Any],
    pumps: _Pumps,
    timeout: float | None,
) -> None:
    """Wait for the end of the process, beating only when output has arrived."""
    clock = SystemClock()
    ends = math.inf if timeout is None else clock.now() + timeout
    while process.poll() is None or not pumps.done:
        if pumps.arrived.wait(LOOK_INTERVAL):
            pumps.arrived.clear()
            context.beat()
        else:
            context.check()
        if clock.now() >= ends:
            raise subprocess.TimeoutExpired(process.args, timeout or 0.0)
    context.beat()


def _end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
