"""``celery -A proj lease doctor``: what is wrong with an app, its broker and its workers.

One module for each subject; each yields :class:`~.findings.Finding`, none changes anything. Every
``celery`` command imports this package, so what examines is imported when it is asked for.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from celery_lease.cli.workers import TIMEOUT


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.option("--strict", is_flag=True, help="End with 1 for warnings too.")
@TIMEOUT
@click.option(
    "--grace-period",
    "grace",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="What workers are given to stop: terminationGracePeriodSeconds, TimeoutStopSec, "
    "stopwaitsecs, stop_grace_period.",
)
@click.option(
    "--pre-stop",
    "before",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="How much of the grace period passes before SIGTERM, in a preStop hook.",
)
@click.option(
    "--levels",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many different priorities the workers of one group have.",
)
@click.pass_context
def doctor(ctx: click.Context, /, as_json: bool, strict: bool, **asked: Any) -> None:
    """Check this app, its broker and the workers that are up; change nothing.

    Each finding says what was seen, what comes of it, and what to do. Ends with 1 if there is an
    error.
    """
    from .examine import Request, examine  # noqa: PLC0415  (see above)
    from .report import show  # noqa: PLC0415

    report = examine(ctx.obj.app, Request(**asked))
    colours = sys.stdout.isatty() and not ctx.obj.no_color
    show(report, as_json=as_json, colours=colours)
    ctx.exit(report.exit_code(strict=strict))
