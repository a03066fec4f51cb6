"""Start workers as forks of a process that has imported Celery, which is most of their start.

A fork becomes what ``python -m celery …`` would be: its session, log, environment, ``__main__`` and
the end of its interpreter are its own. What has to differ from the first import on (green pools,
another interpreter, preloaded libraries) is started as any process; :func:`fits` tells which.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MARK = "HARNESS_PROCESS"
TESTS = str(Path(__file__).parent.parent)
CELERY = [sys.executable, "-m", "celery"]
#: With these imported, a worker needs nothing but its app.
PRELOADED = (
    "celery.bin.celery",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.events.dispatcher",
    "celery.worker.consumer",
    "celery_lease.brokers.redis",
    "celery_lease.worker.steps",
    "kombu.transport.redis",
)


def fits(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Tell whether a process can be a fork."""
    return (
        sys.platform == "linux"
        and list(command[: len(CELERY)]) == CELERY
        and not {"gevent", "eventlet"} & {*command}
        and _foreign(env) == _foreign(server().environment)
    )


def _foreign(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an import may read: all but those of the tests' own apps."""
    return {name: env[name] for name in env if not name.startswith("HARNESS_")}


def _environment() -> dict[str, str]:
    paths = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
    # The mark's place in memory is what /proc shows of a fork.
    return {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", MARK: "0" * 32}


class Fork:
    """One fork, as ``subprocess.Popen`` has processes."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return how it ended (negative: by this signal); None while it lives."""
        if self.returncode is None:
            self.server.read(0)
            self.returncode = self.server.ended.pop(self.pid, None)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Return how it ended, or raise ``subprocess.TimeoutExpired``."""
        while self.poll() is None:
            if not self.server.read(timeout):
                raise subprocess.TimeoutExpired(CELERY, timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """The tests' side; it ends with their process."""

    def __init__(self) -> None:
        self.environment = _environment()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.forkserver", str(theirs.fileno())],
                env=self.environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._lock = threading.RLock()  # tests may start workers in threads
        self.ended: dict[int, int] = {}

    def start(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> Fork:
        """Start ``python -m celery …``, whose output is added to a file."""
        arguments = list(command[len(CELERY) :])
        request = {"argv": arguments, "env": dict(env), "log": str(log), "cwd": str(Path.cwd())}
        with self._lock:
            self._socket.send(json.dumps(request).encode())
            while (pid := self._receive()) is None:
                pass
        return Fork(self, pid)

    def read(self, within: float) -> bool:
        """Learn of an end; return whether there was one within so many seconds."""
        with self._lock:
            if not select.select([self._socket], [], [], within)[0]:
                return False
            assert self._receive() is None
            return True

    def _receive(self) -> int | None:
        """Read what started (its process id), or what ended."""
        answer = json.loads(self._socket.recv(1024) or b"{}")
        assert answer, "the fork server has ended"
        if "status" not in answer:
            return int(answer["pid"])
        self.ended[answer["pid"]] = os.waitstatus_to_exitcode(answer["status"])
        return None

    def close(self) -> None:
        """End the server."""
        self._socket.close()
        self._process.wait(10)


_servers: list[ForkServer] = []  # one at most
_lock = threading.Lock()  # guards it: tests may start workers in threads


def server() -> ForkServer:
    """Return this process's fork server."""
    with _lock:
        if not _servers:
            _servers.append(ForkServer())
        return _servers[0]


def close() -> None:
    """End the fork server, if there is one, after its forks."""
    for each in _servers:
        each.close()


def serve(tests: socket.socket) -> dict[str, Any] | None:
    """Fork at each request: return it in the fork, and None once the tests are over."""
    children, wakeup = socket.socketpair()
    wakeup.settimeout(0)
    signal.set_wakeup_fd(wakeup.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([tests, children], [], [])
        if children in ready:
            children.recv(1024)
            for pid, status in _ended():
                tests.send(json.dumps({"pid": pid, "status": status}).encode())
        if tests in ready:
            request = tests.recv(1 << 20)
            if not request:
                return None
            ready_end, fork_end = os.pipe()
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (children, wakeup, tests):
                    each.close()
                wanted = dict(json.loads(request))
                _separate(wanted["env"][MARK])
                os.close(fork_end)
                return wanted
            os.close(fork_end)
            os.read(ready_end, 1)  # until the fork has a group and a mark to be ended by
            os.close(ready_end)
            tests.send(json.dumps({"pid": pid}).encode())


def _ended() -> Iterator[tuple[int, int]]:
    """Yield the forks that ended, with their wait status."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def become(request: dict[str, Any]) -> None:
    """Turn a fork into the process that was asked for, up to its end."""
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for number, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(source, number)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]
    random.seed()
    sys.argv = ["celery", *request["argv"]]
    runpy.run_module("celery", run_name="__main__", alter_sys=True)


def _separate(mark: str) -> None:
    """Leave the server's session, and write the mark where ``/proc`` shows an environment."""
    os.setsid()
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    ctypes.memmove(getenv(MARK.encode()), mark.encode(), len(mark))


def main() -> None:
    """Serve the socket whose number is the argument."""
    for name in PRELOADED:
        import_module(name)
    if request := serve(socket.socket(fileno=int(sys.argv[1]))):
        become(request)


if __name__ == "__main__":
    main()
