"""Spans for OpenTelemetry: of leases that were held, of losses, hand-overs and extensions.

A lease's span ends with the lease, and is made then, with the times of its beginning: nothing is
open meanwhile. Its parent is the span that sent the message, where an instrumentation put that into
the headers, as OpenTelemetry's for Celery does. So it is in the trace of the task's own spans. A
loss and a hand-over have a span in it: the time from the last beat to the end of the lease.

Attributes follow the conventions for messaging spans. Arguments, results, notes and headers are in
none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

import celery_lease
from celery_lease.worker.entries import Ending
from celery_lease.worker.telemetry.trail import Batch, Holding, Trail

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from celery_lease.worker.telemetry import Telemetry

#: Seconds between two looks whether there is something to export.
INTERVAL = 1.0
NANO = 1_000_000_000
#: Operations of their own at the end of a lease.
LAST = {
    **{str(each): "lose" for each in Ending if each.is_loss},
    str(Ending.HANDED_OVER): "hand over",
}
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
        span = self._begin("hold", lease, lease.received, attributes, _sender(lease))
        if lease.started is not None:
            span.add_event("started", timestamp=int(lease.started * NANO))
        if last := LAST.get(lease.ending):
            inside = trace.set_span_in_context(span)
            self._end(self._begin(last, lease, lease.beat, attributes, inside), lease)
        self._end(span, lease)

    def _begin(
        self, name: str, lease: Holding, at: float, attributes: dict[str, Any], parent: Context
    ) -> Span:
        return self._tracer.start_span(
            f"{name} {lease.queue}",
            context=parent,
            kind=SpanKind.INTERNAL,
            attributes={**attributes, "messaging.operation.name": name},
            start_time=int(at * NANO),
        )

    def _end(self, span: Span, lease: Holding) -> None:
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


def _sender(lease: Holding) -> Context:
    """Return the context of the span that sent the message, by the headers that can carry one."""
    texts = {name: value for name, value in lease.headers.items() if isinstance(value, str)}
    return propagate.extract(texts)
