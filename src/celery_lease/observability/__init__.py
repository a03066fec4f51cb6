"""Exports a worker's leases to monitoring systems, and adds their fields to its log.

:mod:`.metrics` defines the metrics, once; :mod:`.prometheus` and :mod:`.otel` export them by their
own conventions and load their libraries. The worker, a layer below, loads them by name when they
are needed; see :mod:`celery_lease.worker.telemetry.exports`.
"""

from __future__ import annotations

from .logs import LeaseLogFilter

__all__ = ["LeaseLogFilter"]
