"""What a worker shows of its leases to monitoring systems and in its log.

:mod:`.metrics` says what there is, once; :mod:`.prometheus` and :mod:`.otel` spell it by their own
conventions and load their libraries. The worker, a layer below, finds them by name when somebody
asks; see :mod:`celery_lease.worker.exports`.
"""

from __future__ import annotations

from .logs import LeaseLogFilter

__all__ = ["LeaseLogFilter"]
