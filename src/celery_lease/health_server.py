"""Answers an orchestrator's probes over HTTP, and requests for metrics.

For a Celery worker and for a :class:`~celery_lease.LoopGroup`: each passes in a function for
its own health. No client can stall the process, or another client: each has a thread of its own,
their number is limited, and beyond the limit the oldest connection is closed.
"""

from __future__ import annotations

import importlib
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

logger = logging.getLogger(__name__)

#: Seconds that a client may take to send its request, or to receive a part of the answer.
REQUEST_TIMEOUT = 5.0
#: Clients at the same time, and connections that wait for a place.
MOST_CLIENTS, BACKLOG = 32, 256

LIVE, READY, METRICS = "/health/live", "/health/ready", "/metrics"

#: The module of a layer above, by name: its library need not be installed.
PROMETHEUS = "celery_lease.observability.prometheus"
MISSING = (
    "no metrics: prometheus-client is not installed here; "
    "install celery-lease[prometheus] and restart the process\n"
)


@dataclass(frozen=True, slots=True)
class Health:
    """The answer to a probe; a subclass adds the facts behind it, which are part of the answer."""

    live: bool  #: False: only a restart helps
    ready: bool


def metrics_page(accept: str) -> tuple[int, str, bytes]:
    """Return status, content type and body of ``/metrics``."""
    try:
        prometheus: Any = importlib.import_module(PROMETHEUS)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "prometheus_client":
            raise
        return 501, "text/plain; charset=utf-8", MISSING.encode()
    return 200, *prometheus.page(accept)


class HealthServer:
    """Answers probes and scrapes on one address until closed."""

    def __init__(
        self,
        host: str,
        port: int,
        judge: Callable[[], Health],
        metrics: Callable[[str], tuple[int, str, bytes]] = metrics_page,
    ) -> None:
        """Start listening.

        Args:
            host: Name or address to listen on.
            port: The port; 0: any free one.
            judge: Returns the process's health.
            metrics: Returns status, content type and body for an ``Accept`` header.

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
            status, content_type, body = 500, "text/plain", b"see the log of this process\n"
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: probes come every few seconds."""


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
        """Bind without a lookup of the host's full name, which may take long and is not used."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = map(str, self.server_address[:2])  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a new client; if there are too many, close the connection of the oldest."""
        with self._lock:
            self._clients[request] = None
            oldest = next(iter(self._clients)) if len(self._clients) > MOST_CLIENTS else None
            self._clients.pop(oldest, None)
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread finds out, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Remove a client whose connection ends."""
        with self._lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log at DEBUG that a client went away; an operator cannot act on that."""
        logger.debug("client %s went away: %r", client_address, sys.exception())

    def forget(self) -> None:
        """Close all sockets in a forked child, without the lock, which may be held for ever."""
        for each in (self.socket, *self._clients):
            if (number := each.detach()) >= 0:  # the files of the server's threads hold it open
                os.close(number)


_listening: weakref.WeakSet[HealthServer] = weakref.WeakSet()


def _forget_all() -> None:
    for each in list(_listening):
        each.forget()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_all)
