"""What a worker shows of its leases to monitoring systems.

:mod:`.metrics` says what there is, once; :mod:`.prometheus` and :mod:`.otel` spell it by their own
conventions and load their libraries. The worker, a layer below, finds them by name when somebody
asks; see :mod:`celery_lease.worker.exports`.
"""
