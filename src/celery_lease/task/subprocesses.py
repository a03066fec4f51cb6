"""Runs a command for a task, with its output as the proof of progress.

Threads read the command's pipes and only count the chunks; the calling thread beats, and only when
the count has changed. So a command that hangs stops the beats, as a task that hangs does.

The command runs under a :mod:`~celery_lease.task.shim`, which ends it with all its processes when
the task's process ends, for any reason. Under gevent and eventlet the threads are greenlets.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import selectors
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_lease.core.clock import host_seconds

if sys.platform != "win32":
    from celery_lease.task import shim

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.task.context import ToolContext

#: Seconds between two looks at the lease while the command runs.
LOOK_INTERVAL = 0.2
#: Seconds between the request to end a command and its kill.
GRACE = 5.0
#: Seconds that the readers of an ended command have to finish.
READERS = 0.2
CHUNK = 65536

#: Options of ``Popen`` for the command, and not for its shim.
_OF_COMMAND = frozenset(
    {
        *("close_fds", "cwd", "env", "executable", "extra_groups", "group", "pass_fds"),
        *("process_group", "restore_signals", "shell", "start_new_session", "umask", "user"),
    }
)
_CHOICES = frozenset({"process_group", "start_new_session", "preexec_fn"})


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
    if sys.platform == "win32":  # no worker runs there, so there is no lease to lose
        _complete(popen, None)
        done = subprocess.run(command, input=input, check=check, timeout=timeout, **popen)  # noqa: S603
        context.beat()
        return done
    _complete(popen, input)
    process, task = _start(command, popen)
    with task:
        pumps = _Pumps(process, input)
        try:
            _watch(context, process, pumps, timeout)
        except BaseException as exc:
            _end(process, task, pumps)
            if isinstance(exc, subprocess.TimeoutExpired):
                exc.cmd, (exc.output, exc.stderr) = command, pumps.results()
            raise
    output, errors = pumps.results()
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, output, errors)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _complete(popen: dict[str, Any], text: str | bytes | None) -> None:
    """Fill in the defaults of :func:`subprocess.run`."""
    if text is not None:
        if popen.get("stdin") is not None:
            raise ValueError("stdin and input may not both be given")
        popen["stdin"] = subprocess.PIPE
    if popen.pop("capture_output", True):
        popen.setdefault("stdout", subprocess.PIPE)
        popen.setdefault("stderr", subprocess.PIPE)


def _start(
    command: str | list[str], popen: dict[str, Any]
) -> tuple[subprocess.Popen[Any], socket.socket]:
    """Start a command under a shim; return the shim, which stands for it, and the socket to it."""
    of_command = {name: value for name, value in popen.items() if name in _OF_COMMAND}
    of_shim = {name: value for name, value in popen.items() if name not in _OF_COMMAND}
    chosen = popen.keys() & _CHOICES
    if not chosen:
        of_command["process_group"] = 0
    if not chosen or ("preexec_fn" not in chosen and _leaves_group(popen)):
        of_shim["process_group"] = 0
    task, theirs = socket.socketpair()
    try:
        with theirs:
            given = {*popen.get("pass_fds", ()), theirs.fileno()}
            call = [sys.executable, "-I", "-S", shim.__file__, str(theirs.fileno())]
            process = subprocess.Popen(call, pass_fds=tuple(given), **of_shim)  # noqa: S603
        _begin(process, task, (_plain(command), of_command, GRACE))
    except BaseException:
        task.close()
        raise
    return process, task


def _begin(process: subprocess.Popen[Any], task: socket.socket, what: Any) -> None:
    """Send the command to the shim, and raise the error of its start, if any."""
    try:
        task.sendall(pickle.dumps(what))
        failed = _answer(task)
        if failed is None:
            return
    except BaseException as exc:  # noqa: BLE001
        failed = exc
    task.close()  # ends the shim
    with process:
        raise failed


def _leaves_group(popen: dict[str, Any]) -> bool:
    return bool(popen.get("start_new_session")) or popen.get("process_group") == 0


def _plain(command: Any) -> Any:
    """Return a command in types that every Python process knows."""
    if isinstance(command, (str, bytes, os.PathLike)):
        return os.fspath(command)
    return [os.fspath(each) for each in command]


def _answer(task: socket.socket) -> BaseException | None:
    """Return the error of the command's start, or None."""
    data = b"".join(iter(lambda: task.recv(CHUNK), b""))
    if not data:
        return ChildProcessError("the process that watches over a command ended before it started")
    failed: BaseException | None = pickle.loads(data)  # noqa: S301  (from the shim)
    return failed


class _Pumps:
    """Threads that move a process's input and output."""

    def __init__(self, process: subprocess.Popen[Any], text: str | bytes | None) -> None:
        self.chunks = 0  #: changes when output arrives
        self.changed = threading.Event()  #: output arrived, or a reader ended
        self._streams: dict[str, Any] = {"stdout": process.stdout, "stderr": process.stderr}
        self._kept: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self._threads: list[threading.Thread] = []
        self._busy: set[Any] = set()  # streams whose threads still run
        # Read now: gevent's streams have no encoding after they are closed.
        self._codecs = {
            name: (stream.encoding, stream.errors)
            for name, stream in self._streams.items()
            if hasattr(stream, "encoding")
        }
        for name, stream in self._streams.items():
            if stream is not None:
                self._start(self._read, stream, self._kept[name])
        if process.stdin is not None:
            encoding = getattr(process.stdin, "encoding", None)
            data = text.encode(encoding) if isinstance(text, str) and encoding else text
            self._start(self._write, process.stdin, data)

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
        with stream:
            pipe = _Pipe(stream, selectors.EVENT_READ)
            while chunk := pipe.when_ready(lambda raw: raw.read(CHUNK)):
                kept.append(chunk)
                self.chunks += 1
                self.changed.set()

    def _write(self, stream: Any, data: Any) -> None:
        left = memoryview(data or b"")
        with stream, suppress(BrokenPipeError):
            pipe = _Pipe(stream, selectors.EVENT_WRITE)
            while left:
                left = left[pipe.when_ready(partial(_write_part, left[:CHUNK])) :]

    @property
    def done(self) -> bool:
        """Whether all output of the command and its processes was read."""
        return not self._busy

    def join(self, within: float) -> None:
        """Wait for the threads to end, *within* seconds each."""
        for thread in self._threads:
            thread.join(within)

    def results(self) -> tuple[Any, Any]:
        """Return the output of stdout and stderr, None where it was not captured."""
        return self._result("stdout"), self._result("stderr")

    def _result(self, name: str) -> Any:
        stream = self._streams[name]
        if stream is None:
            return None
        output = b"".join(self._kept[name])
        if name not in self._codecs:
            return output
        text = output.decode(*self._codecs[name])
        return text.replace("\r\n", "\n").replace("\r", "\n")


def _write_part(part: memoryview, raw: io.FileIO) -> int | None:
    return raw.write(part)


class _Pipe:
    """One end of a pipe; its waits let other greenlets run.

    It bypasses gevent's streams, which have no ``read1``, and eventlet's ``os.write``, which takes
    a broken pipe for a full one and retries for ever.
    """

    def __init__(self, stream: Any, event: int) -> None:
        os.set_blocking(stream.fileno(), False)
        self._raw = io.FileIO(stream.fileno(), "rb+", closefd=False)
        self._event = event

    def when_ready(self, move: Callable[[io.FileIO], Any]) -> Any:
        """Call *move* once it can make progress, and return its result."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._raw, self._event)
            while True:
                selector.select()
                moved = move(self._raw)
                if moved is not None:
                    return moved


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
    """Wait for an event; return whether the process and its output have ended."""
    if not pumps.done:
        pumps.changed.wait(within)
        pumps.changed.clear()
        return False
    with suppress(subprocess.TimeoutExpired):
        process.wait(within)
    return process.returncode is not None


def _end(process: subprocess.Popen[Any], task: socket.socket, pumps: _Pumps) -> None:
    """Ask the shim to end the command and its processes, in :data:`GRACE` seconds or by force."""
    with suppress(OSError):
        task.sendall(shim.END)
    try:
        process.wait(GRACE + 2 * shim.DEATH)
    except subprocess.TimeoutExpired:  # something keeps the shim from running
        process.kill()
        process.wait()
    # A process that could not be ended may hold the pipes open; then its readers are left behind.
    pumps.join(READERS)
