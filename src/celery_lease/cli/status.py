"""``celery -A proj lease status``: the leases of all workers, once."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from celery_lease.cli import rows
from celery_lease.cli.broker import EX_UNAVAILABLE
from celery_lease.cli.sources import sources
from celery_lease.cli.workers import DESTINATION, TIMEOUT, report_silent, warn_of_namesakes
from celery_lease.core.clock import SystemClock
from celery_lease.core.words import counted
from celery_lease.view import Collector, LeaseRow, View
from celery_lease.view.row import PARKED

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
@click.option("--sort", type=click.Choice(list(rows.SORTS)), default="worker", show_default=True)
@DESTINATION
@TIMEOUT
@click.pass_context
def status(
    ctx: click.Context, as_json: bool, sort: str, destination: list[str], timeout: float
) -> None:
    """Show the leases of all workers.

    The workers' answers are merged with the broker's records, if the broker has any: a lease whose
    holder does not answer is orphaned, and its message runs again when the lease expires. Messages
    that wait for an exclusive key are parked: the first of them are listed, without -d. Exits with
    status 69 if no worker replied, with 1 if a worker named by -d did not reply.
    """
    clock, collector = SystemClock(), Collector()
    with sources(ctx.obj.app) as found:
        replies = collector.collect(found, clock.now, names=destination, timeout=timeout)
    silent = found.ask is not None and report_silent(destination, replies, timeout)
    view = collector.view(clock.now())
    warn_of_namesakes(view.duplicates)
    if view.unavailable:
        click.echo(view.unavailable, err=True)
    listed = rows.in_order(view.all_rows, sort)
    if as_json:
        click.echo(json.dumps(document(view, listed), indent=2, ensure_ascii=False))
    else:
        _show(view, listed)
    if silent:
        ctx.exit(1 if replies else EX_UNAVAILABLE)


def document(view: View, listed: Sequence[LeaseRow]) -> dict[str, object]:
    """Return leases and parked messages as a JSON document."""
    return {
        "source": "workers" if view.workers else "broker",
        "recorded": view.recorded,
        "workers": sorted(view.workers),
        "duplicates": {node: sorted(who) for node, who in view.duplicates.items()},
        "leases": [asdict(row) for row in listed if row.state != PARKED],
        "parked": dict(view.parked_in),
        "parked_messages": [asdict(row) for row in listed if row.state == PARKED],
        "more_parked": view.more_parked,
    }


def _show(view: View, listed: Sequence[LeaseRow]) -> None:
    if listed:
        _table(listed)
    if view.more_parked:
        click.echo(f"and {counted(view.more_parked, 'more parked message')}")
    if view.workers:
        click.echo(f"{counted(len(view.rows), 'lease')}, {counted(len(view.workers), 'worker')}")
    elif view.rows:
        click.echo(f"{counted(len(view.rows), 'lease')} on the broker's record")
    if view.parked_count:
        count = counted(view.parked_count, "message")
        click.echo(f"{count} parked, waiting for an exclusive key: celery -A APP lease keys")


def _table(found: Sequence[LeaseRow]) -> None:
    now = SystemClock().wall().timestamp()
    cells: Sequence[Sequence[str]] = [rows.cells(row, now) for row in found]
    most = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if most is not None:
        cells = rows.shortened(cells, most)
        try:
            from celery_lease.cli.paint import print_table  # noqa: PLC0415  (an extra)
        except ImportError:
            pass
        else:
            print_table(found, cells)
            return
    for line in rows.text(cells, most):
        click.echo(line)
