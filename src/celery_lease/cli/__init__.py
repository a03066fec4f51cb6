"""``celery -A proj lease ...``: what operators do with leases.

Every ``celery`` command imports this module, so it imports little.
"""

from __future__ import annotations

import click

from .cancel import cancel
from .dead import dead
from .doctor import doctor
from .drain import drain
from .explain import explain
from .group import group
from .health import health
from .reap import reap
from .status import status
from .top import top
from .trace import trace


@click.group()
def lease() -> None:
    """Leases of long tasks."""


lease.add_command(cancel)
lease.add_command(dead)
lease.add_command(doctor)
lease.add_command(drain)
lease.add_command(explain)
lease.add_command(group)
lease.add_command(health)
lease.add_command(reap)
lease.add_command(status)
lease.add_command(top)
lease.add_command(trace)

__all__ = ["lease"]
