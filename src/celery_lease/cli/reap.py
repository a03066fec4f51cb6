"""``celery -A proj lease reap``: returns expired leases without a worker."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

import click

from celery_lease.cli.broker import driver_of, loaded_of
from celery_lease.core.words import counted
from celery_lease.worker.reaper import BATCH, BATCHES, Reaper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_lease.core.delivery import Reaped
    from celery_lease.core.driver import Driver


@click.command()
@click.option("--forever", is_flag=True, help="Sweep at each interval, until SIGTERM or SIGINT.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.01),
    show_default="lease_reaper_interval",
    help="Seconds between two sweeps.",
)
@click.option(
    "--dry-run", is_flag=True, help="List the messages that would be returned, and change nothing."
)
@click.pass_context
def reap(ctx: click.Context, forever: bool, interval: float | None, dry_run: bool) -> None:
    """Return expired messages to their queues.

    Every worker with leased tasks does that by itself; the command is for times without a worker.
    Overdue plain messages are returned, too. Any number of sweeps may run at the same time. Exits
    with status 1 if the broker does not answer.
    """
    if forever and dry_run:
        raise click.UsageError("--dry-run looks once: leave out --forever")
    app = ctx.obj.app
    with driver_of(app, "reaps") as driver:
        if forever:
            _sweep_forever(driver, interval or loaded_of(app).reaper_interval)
            return
        try:
            found = driver.overdue(limit=BATCH * BATCHES) if dry_run else Reaper(driver).run_once()
        except OSError as exc:
            raise click.ClickException(str(exc)) from exc
        _show(found, "would return" if dry_run else "returned")


def _sweep_forever(driver: Driver, interval: float) -> None:
    end, reaper = threading.Event(), Reaper(driver)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: end.set())
    while not end.is_set():
        try:
            reaped = reaper.run_once()
        except OSError as exc:
            click.echo(f"{exc}; next try in {interval:g} s", err=True)
        else:
            _show(reaped, "returned", quiet=True)
        end.wait(interval)


def _show(reaped: Sequence[Reaped], verb: str, *, quiet: bool = False) -> None:
    for each in reaped:
        click.echo(_line(each, verb))
    if not quiet or reaped:
        click.echo(f"{verb} {counted(sum(not each.error for each in reaped), 'message')}")


def _line(each: Reaped, verb: str) -> str:
    about: Any = each.about
    is_task = each.leased and not each.unclaimed
    what = f"task {about.get('task')}[{about.get('id')}]" if is_task else f"message {each.tag}"
    where = f", queue {each.queue}" if each.queue else ""
    if each.error:
        return f"not {verb} {what}{where}: {each.error}"
    return f"{verb} {what}{where}, {each.late:.1f} s late"
