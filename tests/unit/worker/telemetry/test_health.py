"""What a probe is told, and that no probe can hold anything up."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.health_server import MOST_CLIENTS, REQUEST_TIMEOUT, HealthServer
from celery_lease.worker.intake import Intake
from celery_lease.worker.telemetry.health import DEAD, LATE, WorkerHealth, health_of
from harness.waiting import eventually
from unit.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator


class Leases(SimpleNamespace):
    """As much of a worker's leases as a probe looks at."""

    def __len__(self) -> int:
        return 3


def leases(*, loop: float = 0.0, keeper: float = 0.0, closed: bool = False) -> Any:
    """Return leases whose loop and keeper were last seen so many seconds ago."""
    clock = FakeClock()
    now = clock.now()
    intake = Intake()
    if closed:
        intake.stop()
    return Leases(clock=clock, loop_alive=now - loop, keeper_seen=now - keeper, intake=intake)


@pytest.mark.parametrize(
    ("state", "stuck", "live", "ready"),
    [
        ({}, 0, True, True),
        ({}, 1, True, False),
        ({"loop": LATE + 1}, 0, True, False),
        ({"keeper": LATE + 1}, 0, True, False),
        ({"loop": DEAD + 1}, 0, False, False),
        ({"keeper": DEAD + 1}, 0, False, False),
        ({"closed": True}, 0, True, False),
        ({"closed": True, "loop": DEAD + 1}, 0, True, False),
        ({"closed": True, "keeper": DEAD + 1}, 0, False, False),
    ],
)
def test_ready_turns_false_well_before_live(
    state: dict[str, Any], stuck: int, live: bool, ready: bool
) -> None:
    """A worker that drains, stops or has a stuck slot is not ready; a standing loop does not make
    one dead that stops.
    """
    health = health_of(leases(**state), stuck)
    assert (health.live, health.ready) == (live, ready)


@pytest.fixture
def server() -> Iterator[HealthServer]:
    """A server whose worker lives and is not ready."""
    health = WorkerHealth(
        live=True, ready=False, loop_age=0.5, keeper_age=0.1, leases=3, stuck=0, stopping=True
    )
    server = HealthServer("127.0.0.1", 0, lambda: health, metrics)
    yield server
    server.close()


def metrics(accept: str) -> tuple[int, str, bytes]:
    """Say what the client accepts; fail if it accepts nothing."""
    if accept == "nothing":
        raise ZeroDivisionError
    return 200, "text/x-metrics", accept.encode()


def ask(server: HealthServer, path: str) -> tuple[int, dict[str, Any]]:
    url = f"http://127.0.0.1:{server.port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, json.load(exc)


def test_probes_are_answered_with_a_status_and_the_reason(server: HealthServer) -> None:
    """200 and 503 for the probe; the body is for people."""
    live, facts = ask(server, "/health/live")
    assert (live, facts["leases"], facts["stopping"]) == (200, 3, True)
    assert ask(server, "/health/ready")[0] == 503
    lost, facts = ask(server, "/elsewhere")
    assert (lost, facts["there is"]) == (404, ["/health/live", "/health/ready", "/metrics"])


def test_a_client_that_says_nothing_does_not_hold_up_the_next(server: HealthServer) -> None:
    """Each request has a thread of its own."""
    with socket.create_connection(("127.0.0.1", server.port)):
        assert ask(server, "/health/live")[0] == 200


def scrape(server: HealthServer, accept: str) -> Any:
    """Ask for metrics."""
    url = f"http://127.0.0.1:{server.port}/metrics?name=x"
    request = urllib.request.Request(url, headers={"Accept": accept})
    return urllib.request.urlopen(request, timeout=5)  # noqa: S310


def test_metrics_are_given_in_the_form_that_the_client_accepts(
    server: HealthServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be given is an error of the server's, told in the log with its cause."""
    with scrape(server, "text/some") as answer:
        assert (answer.headers["Content-Type"], answer.read()) == ("text/x-metrics", b"text/some")
    with pytest.raises(urllib.error.HTTPError) as caught, scrape(server, "nothing"):
        pass
    with caught.value as answer:
        assert answer.code == 500
    assert "ZeroDivisionError" in caplog.text


def test_two_hundred_silent_clients_neither_stall_a_probe_nor_pile_up(
    server: HealthServer,
) -> None:
    """Each probe is answered long before the first of them has used up its time; the threads that
    they take are bounded.
    """
    before = threading.active_count()
    clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    for client in clients[::2]:
        client.sendall(b"GET /health/live HTTP/1.1\r\nX-Half: ")
    began = time.monotonic()
    for _ in range(20):
        assert ask(server, "/health/live")[0] == 200
    assert time.monotonic() - began < REQUEST_TIMEOUT
    eventually(lambda: threading.active_count() - before <= MOST_CLIENTS, 5)
    for client in clients:
        client.close()
    eventually(lambda: threading.active_count() <= before, 2 * REQUEST_TIMEOUT)


def test_a_client_that_reads_nothing_holds_up_nobody(server: HealthServer) -> None:
    """Its answer waits in the socket, or for a bounded time in a thread of its own."""
    with socket.create_connection(("127.0.0.1", server.port)) as deaf:
        deaf.sendall(b"GET /metrics HTTP/1.0\r\nAccept: %s\r\n\r\n" % (b"x" * 60_000))
        assert ask(server, "/health/live")[0] == 200


def test_a_forked_child_keeps_neither_the_port_nor_a_client(server: HealthServer) -> None:
    """Or a worker that is started anew could not listen while an old task process lives, and a
    client would wait for the end of an answer that it has got.
    """
    with socket.create_connection(("127.0.0.1", server.port)):
        eventually(lambda: server._server._clients, 5)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            sockets = [server._server.socket, *server._server._clients]
            os.write(writer, b"%d" % max(each.fileno() for each in sockets))
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(reader, 10) == b"-1"
        os.close(reader)
        os.close(writer)
