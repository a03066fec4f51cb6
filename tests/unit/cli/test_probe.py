"""Asking a worker for its health by a command."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from celery_lease import probe
from celery_lease.cli.health import health
from celery_lease.health_server import HealthServer
from celery_lease.worker.telemetry.health import WorkerHealth
from harness.waiting import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

GOOD = WorkerHealth(
    live=True, ready=True, loop_age=0.5, keeper_age=0.1, leases=3, stuck=0, stopping=False
)


class Worker:
    """As much of a worker as a probe asks."""

    def __init__(self) -> None:
        self.health = GOOD
        self.server = HealthServer(
            "127.0.0.1", 0, lambda: self.health, lambda _: (200, "text/plain", b"")
        )


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker that is well."""
    worker = Worker()
    yield worker
    worker.server.close()


def test_the_answer_is_an_exit_code_and_a_line(worker: Worker) -> None:
    """Live and ready are asked apart."""
    port = worker.server.port
    code, line = probe.report(probe.READY, port=port)
    assert code == 0
    assert line.startswith("ready: {")
    worker.health = replace(GOOD, ready=False, stuck=1)
    code, line = probe.report(probe.READY, port=port)
    assert code == 1
    assert '"stuck": 1' in line
    assert probe.report(probe.LIVE, port=port)[0] == 0


def test_nobody_there_is_not_healthy() -> None:
    """A worker that is still starting, or gone."""
    port = free_port()
    code, line = probe.report(probe.LIVE, port=port)
    assert code == 1
    assert line.startswith(f"not live: no answer from 127.0.0.1 port {port}")


def test_somebody_else_there_is_not_healthy() -> None:
    """Another server that was given the same port."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            client, _ = other.accept()
            with client:
                client.recv(1000)
                client.sendall(b"SSH-2.0-other\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        code, line = probe.report(probe.LIVE, port=other.getsockname()[1])
        thread.join()
    assert code == 1
    assert "no worker's health server answers there, but: b'SSH-2.0-other" in line


def test_one_who_says_nothing_is_given_up() -> None:
    """The orchestrator's own timeout may be longer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code, line = probe.report(probe.LIVE, port=silent.getsockname()[1], timeout=0.05)
    assert code == 1
    assert "timed out" in line


def test_the_module_imports_neither_celery_nor_a_client() -> None:
    """A probe runs every few seconds, beside the work."""
    program = (
        "import sys; import celery_lease.probe; "
        "print({'celery', 'kombu', 'click', 'asyncio', 'http'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def app(**conf: Any) -> Any:
    """Return what the celery command hands to its sub-commands."""
    return SimpleNamespace(app=SimpleNamespace(conf=conf))


def test_the_sub_command_asks_the_port_of_the_app(worker: Worker) -> None:
    """On loopback, where a worker listens that listens everywhere."""
    conf = {"lease_health_port": worker.server.port, "lease_health_host": "0.0.0.0"}  # noqa: S104
    done = CliRunner().invoke(health, [], obj=app(**conf))
    assert done.exit_code == 0
    assert done.output.startswith("ready: ")
    worker.health = replace(GOOD, ready=False)
    assert CliRunner().invoke(health, [], obj=app(**conf)).exit_code == 1
    assert CliRunner().invoke(health, ["--live"], obj=app(**conf)).exit_code == 0


def test_the_sub_command_needs_no_app_with_a_port(worker: Worker) -> None:
    """And says what is missing without either."""
    done = CliRunner().invoke(health, ["--port", str(worker.server.port)], obj=None)
    assert done.exit_code == 0
    nothing = CliRunner().invoke(health, [], obj=app())
    assert nothing.exit_code == 2
    assert "this app sets no lease_health_port: say --port" in nothing.output
    wrong = CliRunner().invoke(health, [], obj=app(lease_health_port="8000"))
    assert wrong.exit_code == 1
    assert "lease_health_port" in wrong.output
