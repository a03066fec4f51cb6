"""Finds the exporters, a layer above, when somebody wants them; nothing is loaded before.

By name, as Celery finds a pool: the worker's layer does not depend on them, and their libraries
need not be installed.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from celery.utils.imports import symbol_by_name

if TYPE_CHECKING:
    from celery_lease.worker.vitals import Vitals

logger = logging.getLogger(__name__)

PROMETHEUS = "celery_lease.observability.prometheus:page"
OTEL = "celery_lease.observability.otel:begin"
#: What is loaded once a program uses OpenTelemetry's metrics, and what names a provider to load.
OTEL_IN_USE, OTEL_TO_BE_USED = "opentelemetry.metrics", "OTEL_PYTHON_METER_PROVIDER"

MISSING = (
    "no metrics: prometheus-client is not installed here; "
    "install celery-lease[prometheus] and restart the worker\n"
)


def metrics_page(accept: str) -> tuple[int, str, bytes]:
    """Return status, content type and body of ``/metrics``."""
    try:
        page: Any = symbol_by_name(PROMETHEUS)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "prometheus_client":
            raise
        return 501, "text/plain; charset=utf-8", MISSING.encode()
    return 200, *page(accept)


def begin(vitals: Vitals) -> None:
    """Let OpenTelemetry see a worker, if the program uses its metrics.

    Whatever is wrong with it is told, and keeps no worker from its work.
    """
    if OTEL_IN_USE in sys.modules or OTEL_TO_BE_USED in os.environ:
        try:
            symbol_by_name(OTEL)(vitals)
        except Exception as exc:  # noqa: BLE001
            logger.warning("no metrics for OpenTelemetry (celery-lease[otel]): %r", exc)
