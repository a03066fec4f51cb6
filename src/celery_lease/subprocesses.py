"""Run a command for a task, with its output as the proof of progress.

Threads read the command's pipes and only count what arrives; the calling thread beats, and only
when the count has changed. So a command that hangs stops the beats, as a task that hangs does.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery_lease.core.clock import host_seconds

if TYPE_CHECKING:
    from celery_lease.context import ToolContext

#: Seconds between two looks at the lease while the command runs.
LOOK_INTERVAL = 0.2
#: Seconds between asking a command to end and killing it.
GRACE = 5.0
#: Seconds between two looks whether a terminated command has gone.
GONE_INTERVAL = 0.02
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
    _complete(popen, input)
    process = subprocess.Popen(command, **popen)  # noqa: S603  (the author's own command)
    group = _own_group(process)
    pumps = _Pumps(process, input)
    try:
        _watch(context, process, pumps, timeout)
    except BaseException as exc:
        _end(process, group, pumps)
        if isinstance(exc, subprocess.TimeoutExpired):
            exc.output, exc.stderr = pumps.results()
        raise
    output, errors = pumps.results()
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, output, errors)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _complete(popen: dict[str, Any], text: str | bytes | None) -> None:
    """Fill in what :func:`subprocess.run` would, and a process group for the command."""
    if text is not None:
        if popen.get("stdin") is not None:
            raise ValueError("stdin and input may not both be given")
        popen["stdin"] = subprocess.PIPE
    if popen.pop("capture_output", True):
        popen.setdefault("stdout", subprocess.PIPE)
        popen.setdefault("stderr", subprocess.PIPE)
    if not popen.keys() & {"process_group", "start_new_session", "preexec_fn"}:
        popen["process_group"] = 0


def _own_group(process: subprocess.Popen[Any]) -> int | None:
    """Return the command's process group if that is its own, so that all in it may be ended."""
    with suppress(ProcessLookupError):
        if os.getpgid(process.pid) == process.pid:
            return process.pid
    return None


class _Pumps:
    """Threads that move a process's input and output."""

    def __init__(self, process: subprocess.Popen[Any], text: str | bytes | None) -> None:
        self.chunks = 0  #: has changed when something arrived
        self.changed = threading.Event()  #: something arrived, or a reader came to its end
        self._streams: dict[str, Any] = {"stdout": process.stdout, "stderr": process.stderr}
        self._kept: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self._threads: list[threading.Thread] = []
        self._busy: set[Any] = set()  # the streams that threads still work on
        for name, stream in self._streams.items():
            if stream is not None:
                self._start(self._read, stream, self._kept[name])
        if process.stdin is not None:
            self._start(self._write, process.stdin, text)

    def _start(self, move: Any, stream: Any, what: Any) -> None:
        def run() -> None:
            try:
                move(stream, what)
            finally:
                self._busy.discard(stream)
                self.changed.set()

        self._busy.add(stream)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _read(self, stream: Any, kept: list[bytes]) -> None:
        # Below the text layer, which would wait for the end of a line.
        raw = getattr(stream, "buffer", stream)
        read = getattr(raw, "read1", raw.read)
        with stream:
            while chunk := read(CHUNK):
                kept.append(chunk)
                self.chunks += 1
                self.changed.set()

    def _write(self, stream: Any, text: Any) -> None:
        with suppress(BrokenPipeError), stream:
            if text:
                stream.write(text)

    @property
    def done(self) -> bool:
        """Whether all that the command, or what it started, will ever write was read."""
        return not self._busy

    def join(self, within: float) -> None:
        """Give the threads some seconds each to come to their end."""
        for thread in self._threads:
            thread.join(within)

    def results(self) -> tuple[Any, Any]:
        """Return what was read from stdout and stderr, None where nothing was captured."""
        return self._result("stdout"), self._result("stderr")

    def _result(self, name: str) -> Any:
        stream = self._streams[name]
        if stream is None:
            return None
        output = b"".join(self._kept[name])
        if not hasattr(stream, "buffer"):
            return output
        text = output.decode(stream.encoding, stream.errors)
        return text.replace("\r\n", "\n").replace("\r", "\n")


def _watch(
    context: ToolContext,
    process: subprocess.Popen[Any],
    pumps: _Pumps,
    timeout: float | None,
) -> None:
    """Wait for the end of the process, beating only when output has arrived."""
    ends = math.inf if timeout is None else host_seconds() + timeout
    seen = 0
    while not _ended(process, pumps, min(LOOK_INTERVAL, max(ends - host_seconds(), 0.0))):
        if pumps.chunks != seen:
            seen = pumps.chunks
            context.beat()
        else:
            context.check()
        if timeout is not None and host_seconds() >= ends:
            raise subprocess.TimeoutExpired(process.args, timeout)
    context.beat()


def _ended(process: subprocess.Popen[Any], pumps: _Pumps, within: float) -> bool:
    """Wait until there is news, and tell whether it is the end."""
    if not pumps.done:
        pumps.changed.wait(within)
        pumps.changed.clear()
        return False
    with suppress(subprocess.TimeoutExpired):
        process.wait(within)
    return process.returncode is not None


def _end(process: subprocess.Popen[Any], group: int | None, pumps: _Pumps) -> None:
    """End the command, and what it started, within :data:`GRACE` seconds or by force."""
    _send(process, group, signal.SIGTERM)
    ends = host_seconds() + GRACE
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    never = threading.Event()
    while _lives(group) and host_seconds() < ends:
        never.wait(GONE_INTERVAL)
    _send(process, group, signal.SIGKILL)
    process.wait()
    # What left the group may hold the pipes open for ever; then its readers are left behind.
    pumps.join(GONE_INTERVAL * 10)


def _send(process: subprocess.Popen[Any], group: int | None, number: signal.Signals) -> None:
    if group is None:
        process.send_signal(number)
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _lives(group: int | None) -> bool:
    """Tell whether anything is left in a group whose first process has ended."""
    if group is None:
        return False
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS, for a group of which only zombies are left
        return False
    return True
