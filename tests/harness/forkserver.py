"""Start workers as forks of a process that has imported Celery, which is most of their start.

A fork becomes what ``python -m celery …`` would be: its session, log, environment, ``__main__`` and
the end of its interpreter are its own. Each green pool has a server of its own, which its library
has patched as it would a worker. What has to differ from the first import on (another interpreter,
preloaded libraries) is started as any process; :func:`fits` tells which.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
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
#: Of the tests' process, before any test.
_ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")])),
    "PYTHONUNBUFFERED": "1",
    MARK: "0" * 32,  # its place in memory is what /proc shows of a fork
}
CELERY = [sys.executable, "-m", "celery"]
#: Apps whose workers are measured: compared with such that must not have imported celery-lease, or
#: by their memory, of which a fork shares some with the server until it writes there.
MEASURED = ("benchmarks.app", "soak.app")
GREEN = ("gevent", "eventlet")
#: With these imported, a worker needs nothing but its app.
PRELOADED = (
    "celery.app.control",
    "celery.app.events",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.events.dispatcher",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.consumer.delayed_delivery",
    "celery.worker.strategy",
    "celery_lease.brokers.redis",
    "celery_lease.brokers.redis.channel",
    "celery_lease.brokers.redis.driver",
    "celery_lease.installation",
    "celery_lease.observability",
    "celery_lease.observability.metrics",
    "celery_lease.worker.steps",
    "celery_lease.worker.telemetry.trail",
    "encodings.idna",
    "harness.ledger",
    "harness.rabbitmq",
    "harness.setup",
    "kombu.transport.redis",
)
POOLS = ("celery.concurrency.prefork", "celery.concurrency.solo", "celery.concurrency.thread")
#: What workers need besides, where it is installed, by the transport of their broker's URL. Not in
#: green pools: some of it makes gevent's hub, which forks would share.
TRANSPORTS = {
    "amqp": (
        "kombu.transport.pyamqp",
        "celery_lease.brokers.amqp.channel",
        "celery_lease.brokers.amqp.driver",
    ),
    "pgmq": (
        "kombu.transport.pgmq",
        "celery_lease.brokers.pgmq.channel",
        "celery_lease.brokers.pgmq.driver",
    ),
    "sqs": (
        "kombu.transport.SQS",
        "celery_lease.brokers.sqs.channel",
        "celery_lease.brokers.sqs.driver",
        "harness.aws_models",
    ),
}
#: The server waits by these: a green library puts others in their place.
_fork, _open, _read, _waitpid = os.fork, os.open, os.read, os.waitpid
_select, _signal = select.select, signal.signal


def fits(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Tell whether a process can be a fork."""
    return (
        sys.platform == "linux"
        and list(command[: len(CELERY)]) == CELERY
        and not set(MEASURED) & set(command)
        and _foreign(env) == _foreign(_ENVIRONMENT)
    )


def _green(command: Sequence[str]) -> str:
    """Return the green pool that a command names, or an empty text."""
    return next((each for each in GREEN if each in command), "")


def _foreign(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an import may read: less pytest's and those of the tests' apps."""
    return {name: env[name] for name in env if not name.startswith(("HARNESS_", "PYTEST_"))}


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

    def __init__(self, green: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.forkserver", str(theirs.fileno()), green],
                env=_ENVIRONMENT,
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


_servers: dict[str, ForkServer] = {}  # by green pool
_lock = threading.Lock()  # guards it: tests may start workers in threads


def server(command: Sequence[str]) -> ForkServer:
    """Return this process's fork server for such a command."""
    green = _green(command)
    with _lock:
        if green not in _servers:
            _servers[green] = ForkServer(green)
        return _servers[green]


def close() -> None:
    """End the fork servers, after their forks."""
    for each in _servers.values():
        each.close()


def serve(tests: socket.socket, green: str) -> dict[str, Any] | None:
    """Fork at each request: return it in the fork, and None once the tests are over."""
    children, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    _signal(signal.SIGCHLD, lambda _number, _frame: None)
    while True:
        ready, _, _ = _select([tests.fileno(), children], [], [])
        if children in ready:
            _read(children, 1024)
            for pid, status in _ended():
                tests.send(json.dumps({"pid": pid, "status": status}).encode())
        if tests.fileno() in ready:
            request = tests.recv(1 << 20)
            if not request:
                return None
            wanted = dict(json.loads(request))
            if not green:
                _prepare(wanted["env"])
            ready_end, fork_end = os.pipe()
            if (pid := _fork()) == 0:
                signal.set_wakeup_fd(-1)
                _signal(signal.SIGCHLD, signal.SIG_DFL)
                tests.close()
                for each in (children, wakeup):
                    os.close(each)
                _separate(wanted["env"][MARK])
                os.close(fork_end)
                return wanted
            os.close(fork_end)
            _read(ready_end, 1)  # until the fork has a group and a mark to be ended by
            os.close(ready_end)
            tests.send(json.dumps({"pid": pid}).encode())


def _prepare(env: Mapping[str, str]) -> None:
    """Import what a fork needs whose broker is the first of its kind."""
    names = TRANSPORTS.pop(env.get("HARNESS_BROKER", "").partition(":")[0], ())
    with contextlib.suppress(ImportError):
        for name in names:
            import_module(name)
    if names:
        _freeze()


def _freeze() -> None:
    """Keep what is there from all collections: a fork's last one would copy all of these pages."""
    gc.collect()
    gc.freeze()


def _ended() -> Iterator[tuple[int, int]]:
    """Yield the forks that ended, with their wait status."""
    with contextlib.suppress(ChildProcessError):
        while (ended := _waitpid(-1, os.WNOHANG))[0]:
            yield ended


def become(request: dict[str, Any]) -> None:
    """Turn a fork into the process that was asked for, up to its end."""
    log = _open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for number, source in ((0, _open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
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
    """Serve the socket whose number is the first argument, for the green pool that follows."""
    tests, green = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    if green:
        import celery

        celery.maybe_patch_concurrency(["celery", "-P", green])
    for name in (*PRELOADED, *(() if green else POOLS)):
        import_module(name)
    if green == "eventlet":
        import_module("eventlet.hubs").use_hub()  # forks would share the one that patching made
    _freeze()
    if request := serve(tests, green):
        become(request)


if __name__ == "__main__":
    main()
