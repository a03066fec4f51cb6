"""The worker's side of leases: the only layer that knows Celery's worker."""
