"""Loads the exporters of metrics, a layer above, when a program uses them.

By name, as Celery loads a pool: the worker's layer does not depend on them, and their libraries
need not be installed.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol

from celery.utils.imports import symbol_by_name

if TYPE_CHECKING:
    from celery_lease.worker.telemetry import Telemetry

logger = logging.getLogger(__name__)

OTEL = "celery_lease.observability.otel:begin"
OTEL_TRACES = "celery_lease.observability.otel_traces:exporter"
#: The module that a user of OpenTelemetry's metrics, or traces, has loaded, or the variable that
#: names a provider.
OTEL_IN_USE, OTEL_TO_BE_USED = "opentelemetry.metrics", "OTEL_PYTHON_METER_PROVIDER"
TRACES_IN_USE, TRACES_TO_BE_USED = "opentelemetry.trace", "OTEL_PYTHON_TRACER_PROVIDER"


class Exporter(Protocol):
    """Exports what has happened since the last time."""

    def run_once(self) -> float:
        """Export it; return the seconds until the next time. One thread at a time calls this."""
        ...


def begin(telemetry: Telemetry) -> None:
    """Export a worker's metrics by OpenTelemetry, if the program uses that.

    A failure is logged and does not keep the worker from its work.
    """
    if OTEL_IN_USE in sys.modules or OTEL_TO_BE_USED in os.environ:
        _called("metrics", OTEL, telemetry)


def traces(telemetry: Telemetry, transport: str) -> Exporter | None:
    """Return what exports a worker's leases as spans, if the program uses OpenTelemetry's traces.

    Args:
        telemetry: The worker's.
        transport: Kombu's name of its broker.
    """
    if TRACES_IN_USE in sys.modules or TRACES_TO_BE_USED in os.environ:
        exporter: Exporter | None = _called("traces", OTEL_TRACES, telemetry, transport)
        return exporter
    return None


def _called(what: str, name: str, *args: Any) -> Any:
    """Return what the object of a name returns; None if it fails, or cannot be loaded."""
    try:
        return symbol_by_name(name)(*args)
    except Exception as exc:  # noqa: BLE001
        logger.warning("no %s for OpenTelemetry (celery-lease[otel]): %r", what, exc)
        return None
