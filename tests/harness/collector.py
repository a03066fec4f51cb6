"""An OpenTelemetry collector for spans, as far as a test reads one: OTLP over HTTP."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


class Collector:
    """Listens on a free port of this host while it is entered."""

    def __init__(self) -> None:
        self._spans: list[Any] = []
        spans = self._spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                spans.extend(_spans(self.rfile.read(length)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """What ``OTEL_EXPORTER_OTLP_ENDPOINT`` is to be."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def named(self, name: str) -> list[Any]:
        """Return the spans of a name that came so far."""
        return [each for each in list(self._spans) if each.name == name]


def attributes(span: Any) -> dict[str, Any]:
    """Return a span's attributes, each as text or number."""
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }


def _spans(body: bytes) -> Iterator[Any]:
    request = ExportTraceServiceRequest.FromString(body)
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            yield from scope.spans
