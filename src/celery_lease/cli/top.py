"""``celery -A proj lease top``: shows the leases of all workers, live.

One thread asks the workers and the other draws, so that keys and times work while an answer is
awaited. Without a terminal, or without Textual, it prints plain tables one after the other.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from celery_lease.cli import rows
from celery_lease.cli.broker import EX_UNAVAILABLE
from celery_lease.cli.watch import Watch
from celery_lease.cli.workers import DESTINATION, report_silent, warn_of_namesakes
from celery_lease.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_lease.view import View

#: Lines of a screen without leases: headline, column names, number of further leases.
FRAME = 3


@dataclass
class Screen(Watch):
    """The state of the screen."""

    #: The widths of its columns; they only grow, so that a table drawn again does not jump.
    steady: Mapping[str, int] = field(default_factory=lambda: rows.USUAL)

    def headline(self, view: View) -> str:
        """Return the numbers of workers and leases, and what is missing."""
        return "; ".join(filter(None, [view.headline(), self.trouble(), view.unavailable]))


@click.command()
@click.option(
    "-i",
    "--interval",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    help="Seconds between two updates, and for the workers to reply.",
)
@click.option("--once", is_flag=True, help="Print one table and exit.")
@click.option("--sort", type=click.Choice(list(rows.SORTS)), default="held", show_default=True)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=1),
    show_default="all; with --once in a terminal, its height",
    help="Most leases to show.",
)
@DESTINATION
@click.pass_context
def top(  # noqa: PLR0917  (click passes them by name)
    ctx: click.Context,
    interval: float,
    once: bool,
    sort: str,
    lines: int | None,
    destination: list[str],
) -> None:
    """Show the leases of all workers, live.

    Keys: q quits, s sorts by the next column, / filters, Enter explains a lease. In a pipe, or
    without Textual (extra cli), it prints a table of plain text at each interval. A solo worker
    replies while a leased task runs in it, but not while a plain one does.
    """
    watch = Screen(ctx.obj.app, destination, interval)
    replies, askable = watch.ask_once()
    if once:
        silent = askable and report_silent(destination, replies, interval)
        warn_of_namesakes(watch.look().duplicates)
        _print(watch, sort, lines)
        if silent:
            ctx.exit(1 if replies else EX_UNAVAILABLE)
        return
    with suppress(KeyboardInterrupt):
        _follow(watch, sort, lines)


def _follow(watch: Screen, sort: str, lines: int | None) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the terminal is restored
    threading.Thread(target=watch.run, name="celery-lease-top", daemon=True).start()
    try:
        ends = (sys.stdin, sys.stdout, sys.stderr)
        if all(end.isatty() for end in ends) and os.environ.get("TERM") != "dumb":
            try:
                from celery_lease.cli.live import Top  # noqa: PLC0415  (an extra)
            except ImportError:
                click.echo("celery-lease[cli] makes this a live table", err=True)
            else:
                Top(watch, sort, lines).run()
                return
        _print_again_and_again(watch, sort, lines)
    finally:
        watch.over.set()


def _print_again_and_again(watch: Screen, sort: str, lines: int | None) -> None:
    shown: float | None = None
    while not watch.over.is_set():
        if trouble := watch.trouble():
            click.echo(trouble, err=True)
        elif watch.collector.asked_at != shown:
            shown = watch.collector.asked_at
            _print(watch, sort, lines)
            click.echo()
        watch.over.wait(watch.interval)


def _print(watch: Screen, sort: str, lines: int | None) -> None:
    view, now = watch.look(), SystemClock().wall().timestamp()
    found = rows.in_order(view.all_rows, sort)
    size = shutil.get_terminal_size() if sys.stdout.isatty() else None
    most = lines or (max(1, size.lines - FRAME) if size else len(found))
    cells: Sequence[Sequence[str]] = [rows.cells(row, now) for row in found[:most]]
    if size:
        cells = rows.shortened(cells, size.columns, (row.id for row in found))
    watch.steady = rows.widths(cells, watch.steady)
    click.echo(watch.headline(view))
    for line in rows.text(cells, size and size.columns, watch.steady):
        click.echo(line)
    if more := max(0, len(found) - most) + view.more_parked:
        click.echo(f"and {more} more")
