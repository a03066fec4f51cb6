"""``celery -A proj lease doctor``: checks an app, its broker and its workers.

One module for each subject; each yields :class:`~.findings.Finding`, none changes anything. Every
``celery`` command imports this package, so the checks are imported when they are needed.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from celery_lease.cli.workers import TIMEOUT


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.option("--strict", is_flag=True, help="Exit with status 1 for warnings, too.")
@TIMEOUT
@click.option(
    "--grace-period",
    "grace",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Seconds that workers have to stop: terminationGracePeriodSeconds, TimeoutStopSec, "
    "stopwaitsecs, stop_grace_period.",
)
@click.option(
    "--pre-stop",
    "before",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Seconds of the grace period that a preStop hook takes before SIGTERM.",
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
    """Check the app, its broker and its workers.

    Each finding has what was seen, its consequence, and what to do. Nothing is changed. Exits with
    status 1 if there is an error.
    """
    from .examine import examine  # noqa: PLC0415  (see above)
    from .report import show  # noqa: PLC0415

    report = examine(ctx.obj.app, **asked)
    colours = sys.stdout.isatty() and not ctx.obj.no_color
    show(report, as_json=as_json, colours=colours)
    ctx.exit(report.exit_code(strict=strict))
