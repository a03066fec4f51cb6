"""A kombu consumer under leases inside the test's own process, as the conformance suite has it."""

from celery_lease.testing.desk import Bench, Desk, Holder, bodies

__all__ = ["Bench", "Desk", "Holder", "bodies"]
