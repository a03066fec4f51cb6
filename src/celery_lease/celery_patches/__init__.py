"""Repairs of Celery and kombu, one file each.

Each file names the upstream issue, the versions in which it was seen, and, if upstream has repaired
it since, has a check that leaves the repair out there. No file depends on leases.
"""

from __future__ import annotations

from typing import Any


def extend_pools(pool_class: Any, part: type) -> None:
    """Have a prefork *pool_class* make its pools without an event loop with a *part*, once."""
    pool: Any = getattr(pool_class, "BlockingPool", None)  # None: no prefork pool
    if pool is not None and not issubclass(pool, part):
        pool_class.BlockingPool = type(pool.__name__, (part, pool), {})
