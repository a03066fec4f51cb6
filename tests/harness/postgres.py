"""PostgreSQL with pgmq's SQL, as local processes on free ports of 127.0.0.1.

The server refuses to be root: there it runs as the user that its package brings along.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
import psycopg

from harness.lease_desk import Bench
from harness.processes import LocalProcess
from harness.setup import Setup
from harness.waiting import eventually, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

USER = "postgres"
TEMPLATE = "with_pgmq"
#: Nothing of a test needs to outlive the machine; what is committed outlives a killed server.
SETTINGS = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}


def postgres_programs() -> Path | None:
    """Return the directory of the newest installed server's programs, or None."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=_version)
    found = shutil.which("postgres")
    return debian[-1].parent if debian else Path(found).parent if found else None


def _version(program: Path) -> float:
    return float(program.parts[-3])


class PostgresServer(LocalProcess):
    """One server with a database for each test; all of it survives a restart."""

    def __init__(self, programs: Path, options: Sequence[str] = ()) -> None:
        self.programs = programs
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="postgres-"))
        self.data = self.directory / "data"
        if os.geteuid() == 0:
            shutil.chown(self.directory, USER, USER)
        settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
        command = [str(programs / "postgres"), "-D", str(self.data), *settings, *options]
        super().__init__([*_as_user(), *command], self.directory / "server.log")
        self._options = [*self.command]
        self._names = itertools.count(1)

    def run(self, program: str, *arguments: str) -> None:
        """Run one of the server's programs to its end."""
        command = [*_as_user(), str(self.programs / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self.directory)

    def create(self) -> Self:
        """Make the cluster, start it, and prepare the database that all others are copies of."""
        self.run("initdb", "-D", str(self.data), "-U", USER, "-A", "trust", "--no-sync")
        self.start()
        install_pgmq(self._create_database(TEMPLATE))
        return self

    def start(self) -> Self:
        self.command = [*self._options, f"--port={self.port}"]
        super().start()
        eventually(self._answers, 30, what="answer of PostgreSQL")
        return self

    def _answers(self) -> bool:
        assert self.returncode is None, f"PostgreSQL ended:\n{self.log}"
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def dsn(self, database: str = USER) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, *values: object, database: str = USER) -> list[Any]:
        """Run one statement in a transaction of its own and return its rows."""
        with psycopg.connect(self.dsn(database), autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def fresh_database(self) -> Database:
        """Create a database with pgmq that no other test uses."""
        return Database(self, self._create_database(f"test{next(self._names)}", TEMPLATE))

    def bare_database(self) -> Database:
        """Create a database without pgmq."""
        return Database(self, self._create_database(f"bare{next(self._names)}"))

    def _create_database(self, name: str, template: str = "template0") -> str:
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.dsn(name)

    def family(self) -> Iterator[psutil.Process]:
        """Yield its living processes: their titles overwrite the environment that has the mark."""
        with suppress(psutil.NoSuchProcess):
            server = psutil.Process(self.pid)
            yield from (server, *server.children(recursive=True))

    def stop_now(self) -> None:
        """End it as a crash does: connections are cut, nothing is finished."""
        self.send(signal.SIGQUIT)
        self.wait(60)  # on a busy machine

    def close(self) -> None:
        if self._process is not None and self.returncode is None:
            self.stop_now()
        super().close()
        shutil.rmtree(self.directory, ignore_errors=True)


class Standby(PostgresServer):
    """A copy that follows a server, until it takes over its port."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__(primary.programs)
        source = f"host=127.0.0.1 port={primary.port} user={USER}"
        self.run("pg_basebackup", "-D", str(self.data), "-d", source, "-R", "-c", "fast")
        self.start()

    def take_over(self, primary: PostgresServer) -> Self:
        """Become the server at *primary*'s address, which is gone."""
        self.run("pg_ctl", "promote", "-D", str(self.data), "-w")
        self.stop_now()
        self.port = primary.port
        return self.start()


class Database:
    """One database with pgmq in it."""

    def __init__(self, server: PostgresServer, dsn: str) -> None:
        self.server = server
        self.dsn = dsn
        self.name = dsn.rpartition("/")[2]

    def execute(self, statement: str, *values: object) -> list[Any]:
        """Run one statement in a transaction of its own and return its rows."""
        return self.server.execute(statement, *values, database=self.name)

    def setup(self, *, port: int | None = None, **options: Any) -> Setup:
        """Return the Celery setup of a worker, by another *port* if given."""
        return Setup(
            f"pgmq://{USER}@127.0.0.1:{port or self.server.port}/{self.name}",
            conf={"broker_transport_options": {**self.options(), **options}},
        )

    def bench(self, **options: Any) -> PgmqBench:
        """Return consumers inside the test's process."""
        return PgmqBench(self, {**self.options(), **options})

    @staticmethod
    def options() -> dict[str, Any]:
        """Return kombu's transport options."""
        return {
            "init_extension": False,
            "visibility_timeout": 600,
            "wait_time_seconds": 1,
            "polling_interval": 0.1,
            "pool_timeout": 2,
        }

    def counts(self, queue: str = "celery") -> tuple[int, int]:
        """Return how many messages of a queue are visible, and how many are hidden."""
        statement = "SELECT queue_visible_length, queue_length FROM pgmq.metrics(%s)"
        ((visible, length),) = self.execute(statement, queue)
        return visible, length - visible

    def cut(self, application: str = "%") -> int:
        """End the server's side of all connections of an application; return how many."""
        statement = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s "
            "AND pid <> pg_backend_pid() AND application_name LIKE %s"
        )
        return int(self.execute(statement, self.name, application)[0][0])


class PgmqBench(Bench):
    """Consumers of one database."""

    def __init__(self, database: Database, options: dict[str, Any]) -> None:
        super().__init__(database.setup().broker, options)
        self.database = database

    def waiting(self, queue: str = "q") -> int:
        """Return how many messages of a queue are visible; kombu counts the hidden ones too."""
        return self.database.counts(queue)[0]


def install_pgmq(dsn: str) -> None:
    """Put pgmq's SQL into a database; Debian has no package of the extension."""
    from pgmq.install import get_embedded_install_sql, install_pgmq_sql

    install_pgmq_sql(get_embedded_install_sql(), dsn=dsn)


def _as_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    # The last: no server outlives a killed test session.
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", "--pdeathsig=QUIT"]
