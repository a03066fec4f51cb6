"""``celery -A proj lease status``: the leases of all workers, once."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from celery_lease import brokers
from celery_lease.cli import rows
from celery_lease.cli.broker import called, reached
from celery_lease.cli.workers import DESTINATION, EX_UNAVAILABLE, TIMEOUT, asker, tell_silent
from celery_lease.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery

    from celery_lease.cli.rows import Row
    from celery_lease.core.records import Recorded


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
@click.option("--sort", type=click.Choice(list(rows.SORTS)), default="worker", show_default=True)
@DESTINATION
@TIMEOUT
@click.pass_context
def status(
    ctx: click.Context, as_json: bool, sort: str, destination: list[str], timeout: float
) -> None:
    """Show the leases that workers hold: task, since when, last beat, time left, progress.

    If no worker replies, it shows what the broker itself has on record, where it has any. Ends with
    69 if no worker replied, with 1 if one that was named did not.
    """
    app = ctx.obj.app
    with reached(app.connection_for_write()) as connection:
        replies = asker(app, connection)("leases", destination, timeout, {})
    silent = tell_silent(destination, replies, timeout)
    found, source = rows.listed(replies), "workers"
    if not replies and not destination:
        found, source = _on_record(app), "broker"
    found.sort(key=rows.SORTS[sort])
    if as_json:
        document = {"source": source, "workers": sorted(replies), "leases": found}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        _show(found, replies, source)
    if silent:
        ctx.exit(1 if replies else EX_UNAVAILABLE)


def _show(found: Sequence[Row], replies: dict[str, Any], source: str) -> None:
    if found:
        _table(found)
    told = f"{len(found)} leases, {len(replies)} workers"
    if source == "workers":
        click.echo(told)
    elif found:
        click.echo(f"{len(found)} leases on the broker's record")


def _table(found: Sequence[Row]) -> None:
    now = SystemClock().wall().timestamp()
    cells = [rows.cells(row, now) for row in found]
    if sys.stdout.isatty():
        try:
            from celery_lease.cli.paint import print_table  # noqa: PLC0415  (an extra)
        except ImportError:
            pass
        else:
            print_table(found, cells)
            return
    for line in rows.text(cells):
        click.echo(line)


def _on_record(app: Celery) -> list[Row]:
    """Return what the broker knows of leases without a worker."""
    with reached(app.connection_for_read()) as connection:
        if connection.transport.driver_type not in brokers.DRIVERS:
            return []
        driver = brokers.driver(connection.default_channel)
        try:
            if not driver.capabilities.records:
                name = called(connection.transport.driver_type)
                click.echo(
                    f"{name} has no record of leases of its own: only workers know what they hold",
                    err=True,
                )
                return []
            return [_row(each) for each in driver.records().leases()]
        finally:
            driver.close()


def _row(lease: Recorded) -> Row:
    """Return a recorded lease as a worker would describe it, as far as it is known."""
    state = "resting" if lease.resting else "held" if lease.remaining > 0 else "expired"
    return {
        "hostname": lease.worker.partition(":")[0],
        "task": lease.task,
        "id": lease.task_id,
        "state": state,
        "queue": lease.queue,
        "held_since": lease.since,
        "beat_age": None,
        "remaining": round(lease.remaining, 3),
        "progress": {},
        "deliveries": lease.deliveries,
        "losses": lease.losses,
        "token": lease.token,
        "tag": lease.tag,
        "worker": lease.worker,
    }
