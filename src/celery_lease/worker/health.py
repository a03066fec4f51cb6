"""Whether a worker lives and is ready, over HTTP, for the probes of an orchestrator.

``/health/live`` fails when the main loop or the keeper has stood still for so long that only a
restart helps; ``/health/ready`` much earlier, and while the worker drains or stops. No request can
stall the worker: each has a thread of its own, takes no lock and asks no broker.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.worker.leases import Leases

#: Seconds that the main loop and the keeper may stand still before they count as dead, and before
#: the worker counts as not ready.
DEAD, LATE = 60.0, 15.0
#: Seconds that a client may take to send its request.
REQUEST_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Health:
    """What a probe is told."""

    live: bool
    ready: bool
    loop_age: float  #: seconds since the main loop turned, or the task in it (solo) proved its life
    keeper_age: float  #: seconds since the keeper looked at the leases
    leases: int
    stopping: bool  #: no message is taken any more


def health_of(leases: Leases) -> Health:
    """Judge a worker by what its keeper last saw, and when."""
    now = leases.clock.now()
    loop_age, keeper_age = now - leases.loop_alive, now - leases.keeper_seen
    age = max(loop_age, keeper_age)
    return Health(
        # A stopping worker's loop stands still on purpose; its end is bounded by its own rules.
        live=keeper_age < DEAD if leases.door_closed else age < DEAD,
        ready=age < LATE and not leases.door_closed,
        loop_age=round(loop_age, 3),
        keeper_age=round(keeper_age, 3),
        leases=len(leases),
        stopping=leases.door_closed,
    )


class HealthServer:
    """Answers probes on one address until closed."""

    def __init__(self, host: str, port: int, judge: Callable[[], Health]) -> None:
        """Listen at once.

        Raises:
            OSError: The address cannot be listened on.
        """

        class Handler(_Handler):
            health = staticmethod(judge)

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(
            target=self._server.serve_forever, name="celery-lease-health", daemon=True
        ).start()
        _listening.add(self)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self.forget()

    def forget(self) -> None:
        """Close the socket in this process alone: a task process must not keep the port."""
        self._server.socket.close()


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT
    health: Callable[[], Health]

    def do_GET(self) -> None:
        health = self.health()
        good = {"/health/live": health.live, "/health/ready": health.ready}.get(self.path)
        status = 404 if good is None else 200 if good else 503
        body = json.dumps(asdict(health) if good is not None else {"error": "not found"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Probes come every few seconds; they are no news."""


_listening: weakref.WeakSet[HealthServer] = weakref.WeakSet()


def _forget_all() -> None:
    for each in list(_listening):
        each.forget()


os.register_at_fork(after_in_child=_forget_all)
