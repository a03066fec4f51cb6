"""``celery -A proj lease ...``: what operators do with leases.

Every ``celery`` command imports this module, so it imports little.
"""

from __future__ import annotations

import click

from .group import group


@click.group()
def lease() -> None:
    """Leases of long tasks."""


lease.add_command(group)

__all__ = ["lease"]
