"""Leases without Celery's worker: for consumers of other kinds, and loops that end together."""
