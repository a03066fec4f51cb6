"""Spans for OpenTelemetry: one for each lease that was held, one for each batch of extensions.

A lease's span ends with the lease, and is made then, with the times of its beginning: nothing is
open meanwhile. Its parent is the span that sent the message, where an instrumentation put that into
the headers, as OpenTelemetry's for Celery does. So it is in the trace of the task's own spans.

Attributes follow the conventions for messaging spans. Arguments, results, notes and headers are in
none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

import celery_lease
from celery_lease.worker.telemetry.trail import Batch, Holding, Trail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_lease.worker.telemetry import Telemetry

#: Seconds between two looks whether there is something to export.
INTERVAL = 1.0
NANO = 1_000_000_000
#: What the conventions call brokers, by kombu's name of the transport.
SYSTEMS = {"amqp": "rabbitmq", "sqs": "aws_sqs"}


class Exporter:
    """Makes spans of what a worker's trail has. For one thread at a time."""

    def __init__(self, telemetry: Telemetry, transport: str) -> None:
        self._tracer: Tracer = trace.get_tracer("celery_lease", celery_lease.__version__)
        self._trail = telemetry.stats.trail = Trail(telemetry.leases.clock)
        self._always = {
            "messaging.system": SYSTEMS.get(transport, transport),
            "celery.lease.worker": telemetry.worker,
        }

    def run_once(self) -> float:
        """Export what there is; return the seconds until the next look."""
        past = self._trail.past
        while past:
            each = past.popleft()
            if isinstance(each, Batch):
                self._extended(each)
            else:
                self._held(each)
        return INTERVAL

    def _held(self, lease: Holding) -> None:
        attributes: dict[str, Any] = {
            **self._always,
            "messaging.operation.name": "hold",
            "messaging.destination.name": lease.queue,
            "messaging.message.id": lease.task_id,
            "celery.task_name": lease.task,
            "celery.lease.mode": lease.mode,
            "celery.lease.deliveries": lease.deliveries,
            "celery.lease.losses": lease.losses,
            "celery.lease.ending": lease.ending,
        }
        if lease.failure:
            attributes["error.type"] = lease.failure
        span = self._tracer.start_span(
            f"hold {lease.queue}",
            context=propagate.extract(_texts(lease.headers)),
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            start_time=int(lease.received * NANO),
        )
        if lease.started is not None:
            span.add_event("started", timestamp=int(lease.started * NANO))
        if lease.failure:
            span.set_status(Status(StatusCode.ERROR, lease.failure))
        span.end(int(lease.ended * NANO))

    def _extended(self, batch: Batch) -> None:
        span = self._tracer.start_span(
            "extend leases",
            kind=SpanKind.CLIENT,
            attributes={
                **self._always,
                "messaging.operation.name": "extend",
                "messaging.batch.message_count": batch.asked,
                **{f"celery.lease.{answer}": count for answer, count in batch.answers.items()},
            },
            start_time=int(batch.began * NANO),
        )
        if batch.answers.get("unknown") or not batch.answers:
            span.set_status(Status(StatusCode.ERROR, "not answered"))
        span.end(int(batch.ended * NANO))


def exporter(telemetry: Telemetry, transport: str) -> Exporter | None:
    """Return an exporter; None: the program has no tracer provider, so nobody gets the spans.

    A library of the program may have loaded OpenTelemetry, as redis-py does where it is installed.
    """
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return Exporter(telemetry, transport)


def _texts(headers: Mapping[str, object]) -> dict[str, str]:
    """Return the headers that can carry a trace."""
    return {name: value for name, value in headers.items() if isinstance(value, str)}
