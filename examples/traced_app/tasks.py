"""The Celery app. ``OTEL_EXPORTER_OTLP_ENDPOINT`` says where the collector is."""

from __future__ import annotations

import time
from typing import Any

from celery import Celery
from celery.signals import celeryd_init
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from celery_lease import ToolContext, leased_task

app = Celery("traced_app", broker="redis://127.0.0.1:6379/0")
app.conf.update(
    result_backend="redis://127.0.0.1:6379/0",
    task_default_queue="traced_app",
    broker_connection_retry_on_startup=True,
    lease_extension=30,
)


@celeryd_init.connect
def trace_all(**_: Any) -> None:
    """Begin before the pool is forked: the task processes have the same provider.

    A program that sends tasks calls this, too.
    """
    provider = TracerProvider(resource=Resource.create({"service.name": "traced_app"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()


@leased_task
def count_slowly(numbers: int, *, context: ToolContext) -> int:
    """Count, with a beat for each number."""
    total = 0
    for number in context.track(range(numbers)):
        total += number
        time.sleep(0.1)
    return total
