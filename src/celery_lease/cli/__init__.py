"""``celery -A proj lease ...``: the commands for operators.

Every ``celery`` command imports this module, so it imports little.
"""

from __future__ import annotations

import sys

import click

from .advise import advise
from .broker import check_addresses
from .cancel import cancel
from .dead import dead
from .doctor import doctor
from .drain import drain
from .exclusive import exclusive_keys
from .explain import explain
from .hand_over import hand_over
from .health import health
from .plugin import install_at_start, show_in_one_line
from .reap import reap
from .stack import stack
from .status import status
from .top import top
from .trace import trace
from .web import web


@click.group()
@click.pass_context
def lease(ctx: click.Context) -> None:
    """Leases of long tasks."""
    check_addresses(ctx.obj.app.conf)


lease.add_command(advise)
lease.add_command(cancel)
lease.add_command(dead)
lease.add_command(doctor)
lease.add_command(drain)
lease.add_command(explain)
lease.add_command(hand_over)
lease.add_command(health)
lease.add_command(exclusive_keys)
lease.add_command(reap)
lease.add_command(stack)
lease.add_command(status)
lease.add_command(top)
lease.add_command(trace)
lease.add_command(web)

if sys.platform != "win32":  # whose processes have neither groups nor these signals
    from .group import group

    lease.add_command(group)

show_in_one_line()
install_at_start()

__all__ = ["lease"]
