"""Whether a worker lives and is ready, over HTTP, for the probes of an orchestrator; and metrics.

``/health/live`` fails when the main loop or the keeper has stood still for so long that only a
restart helps; ``/health/ready`` much earlier, and while the worker drains, stops, or has a slot
that is taken for good. Neither takes a lock or asks a broker. ``/metrics`` takes the table's lock
for one look at it.

No client can stall the worker, or another client: each has a thread of its own, there is a bound to
them, and beyond it the one that came first has to go.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.worker.leases import Leases

logger = logging.getLogger(__name__)

#: Seconds that the main loop and the keeper may stand still before they count as dead, and before
#: the worker counts as not ready.
DEAD, LATE = 60.0, 15.0
#: Seconds that a client may take to send its request, or to take a part of the answer.
REQUEST_TIMEOUT = 5.0
#: Clients at the same time, and those that wait to be one.
MOST_CLIENTS, BACKLOG = 32, 256

LIVE, READY, METRICS = "/health/live", "/health/ready", "/metrics"


@dataclass(frozen=True, slots=True)
class Health:
    """What a probe is told."""

    live: bool
    ready: bool
    loop_age: float  #: seconds since the main loop turned, or the task in it (solo) proved its life
    keeper_age: float  #: seconds since the keeper looked at the leases
    leases: int
    stuck: int  #: slots of the pool that are taken by a task which could not be ended
    stopping: bool  #: no message is taken any more


def health_of(leases: Leases, stuck: int) -> Health:
    """Judge a worker by what its keeper last saw, and when, and by its watchdog's stuck slots."""
    now = leases.clock.now()
    loop_age, keeper_age = now - leases.loop_alive, now - leases.keeper_seen
    age = max(loop_age, keeper_age)
    return Health(
        # A stopping worker's loop stands still on purpose; its end is bounded by its own rules.
        live=keeper_age < DEAD if leases.door_closed else age < DEAD,
        ready=age < LATE and not leases.door_closed and not stuck,
        loop_age=round(loop_age, 3),
        keeper_age=round(keeper_age, 3),
        leases=len(leases),
        stuck=stuck,
        stopping=leases.door_closed,
    )


class HealthServer:
    """Answers probes and scrapes on one address until closed."""

    def __init__(
        self,
        host: str,
        port: int,
        judge: Callable[[], Health],
        metrics: Callable[[str], tuple[int, str, bytes]],
    ) -> None:
        """Listen at once.

        Args:
            host: Name or address to listen on.
            port: Its port; 0 for any that is free.
            judge: Tells the worker's health.
            metrics: Returns status, content type and body for what a client accepts.

        Raises:
            OSError: The address cannot be listened on.
        """

        class Handler(_Handler):
            pages = _Pages(judge, metrics)

        self._server = _Server(host, port, Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(
            target=self._server.serve_forever, name="celery-lease-health", daemon=True
        ).start()
        _listening.add(self)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.socket.close()

    def forget(self) -> None:
        """Close all sockets in a forked child: it must keep neither the port nor a client."""
        self._server.forget()


@dataclass(frozen=True, slots=True)
class _Pages:
    judge: Callable[[], Health]
    metrics: Callable[[str], tuple[int, str, bytes]]

    def answer(self, path: str, accept: str) -> tuple[int, str, bytes]:
        if path == METRICS:
            return self.metrics(accept)
        if path not in (LIVE, READY):
            there = {"error": "not found", "there is": [LIVE, READY, METRICS]}
            return 404, "application/json", json.dumps(there).encode()
        health = self.judge()
        good = health.live if path == LIVE else health.ready
        return 200 if good else 503, "application/json", json.dumps(asdict(health)).encode()


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT
    pages: _Pages

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        try:
            status, content_type, body = self.pages.answer(path, self.headers.get("Accept", ""))
        except Exception:
            logger.exception("%s could not be answered", path)
            status, content_type, body = 500, "text/plain", b"see the worker's log\n"
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Probes come every few seconds; they are no news."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = BACKLOG

    def __init__(self, host: str, port: int, handler: type[_Handler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._clients: dict[Any, None] = {}  # the oldest first
        self._lock = threading.Lock()  # guards the clients; the server's own threads take it
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        """Bind without asking for the host's full name, which may take long and is not used."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = map(str, self.server_address[:2])  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin with one client; if there are too many, the oldest finds its line closed."""
        with self._lock:
            self._clients[request] = None
            oldest = next(iter(self._clients)) if len(self._clients) > MOST_CLIENTS else None
            self._clients.pop(oldest, None)
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread finds out, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End with one client."""
        with self._lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Say quietly that a client went away; no operator can act on that."""
        logger.debug("client %s went away: %r", client_address, sys.exception())

    def forget(self) -> None:
        """Close all sockets in a forked child. Without the lock: it may have been born held."""
        for each in (self.socket, *self._clients):
            if (number := each.detach()) >= 0:  # what the server's threads read from holds it open
                os.close(number)


_listening: weakref.WeakSet[HealthServer] = weakref.WeakSet()


def _forget_all() -> None:
    for each in list(_listening):
        each.forget()


os.register_at_fork(after_in_child=_forget_all)
