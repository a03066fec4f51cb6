"""What a probe is told, and that no probe can hold anything up."""

from __future__ import annotations

import json
import os
import socket
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.worker.health import DEAD, LATE, Health, HealthServer, health_of
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
    return Leases(clock=clock, loop_alive=now - loop, keeper_seen=now - keeper, door_closed=closed)


@pytest.mark.parametrize(
    ("state", "live", "ready"),
    [
        ({}, True, True),
        ({"loop": LATE + 1}, True, False),
        ({"keeper": LATE + 1}, True, False),
        ({"loop": DEAD + 1}, False, False),
        ({"keeper": DEAD + 1}, False, False),
        ({"closed": True}, True, False),
        ({"closed": True, "loop": DEAD + 1}, True, False),
        ({"closed": True, "keeper": DEAD + 1}, False, False),
    ],
)
def test_ready_turns_false_well_before_live(state: dict[str, Any], live: bool, ready: bool) -> None:
    """A worker that drains or stops is not ready; its standing loop does not make it dead."""
    health = health_of(leases(**state))
    assert (health.live, health.ready) == (live, ready)


@pytest.fixture
def server() -> Iterator[HealthServer]:
    """A server whose worker lives and is not ready."""
    health = Health(live=True, ready=False, loop_age=0.5, keeper_age=0.1, leases=3, stopping=True)
    server = HealthServer("127.0.0.1", 0, lambda: health)
    yield server
    server.close()


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
    assert ask(server, "/metrics")[0] == 404


def test_a_client_that_says_nothing_does_not_hold_up_the_next(server: HealthServer) -> None:
    """Each request has a thread of its own."""
    with socket.create_connection(("127.0.0.1", server.port)):
        assert ask(server, "/health/live")[0] == 200


def test_a_forked_child_does_not_keep_the_port(server: HealthServer) -> None:
    """Or a worker that is started anew could not listen while an old task process lives."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, b"%d" % server._server.socket.fileno())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 10) == b"-1"
    os.close(reader)
    os.close(writer)
