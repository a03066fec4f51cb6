"""Repairs of Celery and kombu, one file each.

Each file names the upstream issue, the versions in which it was seen, and, if upstream has repaired
it since, has a check that leaves the repair out there. No file depends on leases.
"""
