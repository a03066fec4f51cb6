"""Small parts of a worker's runtime: its health server, and malformed messages."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_lease.health_server import HealthServer
from celery_lease.worker.telemetry.health import health_of

if TYPE_CHECKING:
    from celery_lease.settings import Settings
    from celery_lease.worker.telemetry import Telemetry

logger = logging.getLogger(__name__)


def health_server(seen: Telemetry, loaded: Settings) -> HealthServer | None:
    """Start the health server, if a port is set; if that fails, log it and return None."""
    if loaded.health_port is None:
        return None
    try:
        return HealthServer(
            loaded.health_host,
            loaded.health_port,
            lambda: health_of(seen.leases, seen.watchdog.stuck),
        )
    except OSError as exc:
        logger.warning(
            "no health server on %s port %d: %s; the worker runs without /health and /metrics. "
            "Choose another lease_health_host or lease_health_port",
            loaded.health_host,
            loaded.health_port,
            exc,
        )
        return None


def dead_letter_malformed(message: Any) -> str | None:
    """Move a malformed message to a dead-letter queue; return its name, or None if it failed."""
    lease = getattr(message, "lease", None)
    return None if lease is None else lease.leases.dead_letter_malformed(lease.tag)
