"""RabbitMQ as a local process: a node of its own on free ports of 127.0.0.1."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kombu import Queue
from kombu.exceptions import OperationalError

from harness.lease_desk import Bench
from harness.processes import LocalProcess
from harness.setup import Setup
from harness.waiting import eventually, free_port

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from celery import Celery

CONFIG = """\
listeners.tcp.1 = 127.0.0.1:{port}
loopback_users = none
log.console = true
log.console.level = warning
"""

TLS = """\
listeners.ssl.1 = 127.0.0.1:{port}
ssl_options.cacertfile = {cert}
ssl_options.certfile = {cert}
ssl_options.keyfile = {key}
ssl_options.verify = verify_none
"""

QUORUM = {"x-queue-type": "quorum"}
#: The setting that carries the arguments of a worker's queue.
ARGUMENTS = "harness_queue_arguments"


def with_queue(app: Celery) -> Celery:
    """Let an app know its one queue, if there are arguments that it is declared with."""
    if ARGUMENTS in app.conf:
        name = app.conf.task_default_queue
        app.conf.task_queues = [Queue(name, queue_arguments=app.conf[ARGUMENTS])]
    return app


def rabbitmq_home() -> str | None:
    """Return where RabbitMQ's own scripts are; Debian's wrappers insist on its own user."""
    for name in ("rabbitmq-server", "/usr/lib/rabbitmq/bin/rabbitmq-server"):
        path = shutil.which(name)
        real = Path(path).resolve() if path else None
        if real and "script-wrapper" not in real.name:
            return str(real.parent)
    return None


class RabbitBench(Bench):
    """Consumers of one node."""

    def waiting(self, queue: str = "q") -> int:
        """Return how many messages wait in a queue, however it was declared."""
        with self.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).message_count)


class RabbitServer(LocalProcess):
    """One node with what it needs of Erlang: its own name daemon, cookie and directories."""

    def __init__(
        self, home: str, directory: Path, certificates: Mapping[str, Path] | None = None
    ) -> None:
        """With *certificates* it speaks TLS too, on a port of its own."""
        directory.mkdir(parents=True, exist_ok=True)
        self.port, self.tls_port = free_port(), free_port()
        self.directory = directory
        self.certificates = certificates
        self._home = home
        config = CONFIG.format(port=self.port)
        if certificates:
            config += TLS.format(port=self.tls_port, **certificates)
        (directory / "rabbitmq.conf").write_text(config)
        node = f"lease{uuid.uuid4().hex[:8]}@localhost"
        env = {
            "HOME": str(directory),  # the cookie's place
            "RABBITMQ_NODENAME": node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CTL_DIST_PORT_MIN": str(free_port()),  # else 11 ports for all on the machine
            "RABBITMQ_CTL_DIST_PORT_MAX": "65535",
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none"
            ),
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP": str(directory / "crash.dump"),
        }
        super().__init__([f"{home}/rabbitmq-server"], directory / "server.out", env=env)

    def start(self) -> Self:
        super().start()
        eventually(self._answers, 150, every=0.2, what="answer of RabbitMQ")
        # The channels' clock: consumer timeouts are looked at once a minute otherwise.
        self.evaluate("application:set_env(rabbit, channel_tick_interval, 1000)")
        return self

    def _answers(self) -> bool:
        assert self.returncode is None, f"RabbitMQ ended:\n{self.log}"
        with suppress(OSError, OperationalError), self.bench().channel():
            return True
        return False

    @property
    def timed(self) -> dict[str, Any]:
        """Arguments of a queue with a consumer timeout: since 4.3 a classic queue has none."""
        with self.bench().channel() as channel:
            version = channel.connection.server_properties["version"]
        return QUORUM if tuple(map(int, version.split(".")[:2])) >= (4, 3) else {}

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """Return the URL by way of another port, as that of a gate."""
        return f"amqp://guest:guest@127.0.0.1:{port}//"

    def evaluate(self, expression: str) -> str:
        """Evaluate Erlang inside of the node; ``rabbitmqctl`` is an Erlang machine at each call."""
        cookie = (self.directory / ".erlang.cookie").read_text()
        address = f"127.0.0.1:{self.env['RABBITMQ_DIST_PORT']}"
        # -R: calls at the same time have names of their own.
        done = subprocess.run(
            ["erl_call", "-R", "-address", address, "-c", cookie, "-timeout", "60", "-e"],
            input=f"{expression}.\n",
            env=self.env,
            check=True,
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.stdout.startswith("{ok, "), done.stdout
        return done.stdout

    def cut_connections(self, ports: Collection[int] | None = None) -> None:
        """Close all connections, or those from *ports*, as an operator or a failing node does."""
        connections = "rabbit_networking:connections()"
        # Each that is listed may have ended by the time that it is asked, or closed.
        if ports is not None:
            info = "rabbit_networking:connection_info(C, [peer_port])"
            port = f"(catch proplists:get_value(peer_port, {info}))"
            connections += f", lists:member({port}, {[*ports]})"
        close = '(catch rabbit_networking:close_connection(C, "test"))'
        self.evaluate(f"[{close} || C <- {connections}]")

    def bench(self, **options: Any) -> RabbitBench:
        """Return consumers and publishers of the test's own process."""
        return RabbitBench(self.url, options)

    def tls_bench(self) -> RabbitBench:
        """Return consumers and publishers that speak TLS and check who answers."""
        return RabbitBench(self.tls_url, connection={"ssl": self.ssl_options})

    @property
    def tls_url(self) -> str:
        return f"amqps://guest:guest@127.0.0.1:{self.tls_port}//"

    @property
    def ssl_options(self) -> dict[str, Any]:
        """What a client needs to check who answers."""
        assert self.certificates is not None
        return {
            "ca_certs": str(self.certificates["cert"]),
            "cert_reqs": int(ssl.CERT_REQUIRED),  # as JSON takes it
            "server_hostname": "localhost",
        }

    def setup(self, queue: str, arguments: Mapping[str, Any] | None = None, **conf: Any) -> Setup:
        """Return the Celery setup of a worker on one queue, declared with *arguments*."""
        return Setup(
            self.url,
            conf={
                "task_default_queue": queue,
                ARGUMENTS: dict(arguments or {}),
                **conf,
            },
        )

    def ready(self, queue: str) -> int:
        """Return how many messages of a queue are with no consumer."""
        return self.bench().waiting(queue)

    def wait_empty(self, queue: str) -> None:
        """Return once nothing is left of a queue, with consumers neither."""
        eventually(lambda: self.counts(queue) == (0, 0), 40, every=0.5, what=f"empty {queue}")

    def counts(self, queue: str) -> tuple[int, int]:
        """Return how many messages of a queue are with nobody, and how many with consumers."""
        listed = self.evaluate(
            f'case rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)) of '
            "{ok, Q} -> rabbit_amqqueue:info(Q, [messages_ready, messages_unacknowledged]); "
            "_ -> [{messages_ready, 0}, {messages_unacknowledged, 0}] end"
        )
        ready, unacknowledged = map(int, re.findall(r", *(\d+)}", listed))
        return ready, unacknowledged
