"""``celery -A proj lease top``: the leases of all workers, again and again.

One thread asks the workers and the other draws, so that keys and times go on while an answer is
awaited. Where there is no terminal, or no rich, it prints one table of plain text after the other.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from celery_lease.cli import rows
from celery_lease.cli.broker import reached
from celery_lease.cli.fleet import Fleet
from celery_lease.cli.keys import pressed
from celery_lease.cli.workers import DESTINATION, EX_UNAVAILABLE, asker, tell_silent
from celery_lease.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery import Celery

    from celery_lease.cli.rows import Row

#: Seconds between two drawings.
DRAW_INTERVAL = 0.25
#: Lines of a screen that are no leases: headline, column names, what was left out.
FRAME = 3


@dataclass
class Watch:
    """Asks workers in a thread of its own; shares the fleet, whose parts it replaces whole."""

    app: Celery
    names: Sequence[str]
    interval: float
    fleet: Fleet = field(default_factory=Fleet)
    clock: SystemClock = field(default_factory=SystemClock)
    over: threading.Event = field(default_factory=threading.Event)

    def ask_once(self) -> dict[str, Any]:
        """Ask, with a connection for this once.

        Raises:
            click.ClickException: The broker is away.
        """
        with reached(self.app.connection_for_write()) as connection:
            return self._ask(asker(self.app, connection))

    def run(self) -> None:
        """Ask again and again until it is over; a broker that is away may come back."""
        while not self.over.is_set():
            try:
                with reached(self.app.connection_for_write()) as connection:
                    ask = asker(self.app, connection)
                    while not self.over.is_set():
                        began = self.clock.now()
                        self._ask(ask)
                        self.over.wait(max(0.0, began + self.interval - self.clock.now()))
            except click.ClickException as exc:
                self.fleet.failed(exc.message)
            except Exception as exc:  # noqa: BLE001  (it is shown, and asked again)
                self.fleet.failed(repr(exc))
            self.over.wait(self.interval)

    def _ask(self, ask: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        replies = ask("leases", self.names, self.interval, {})
        self.fleet.heard(replies, self.clock.now())
        return replies


@click.command()
@click.option(
    "-i",
    "--interval",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    help="Seconds between two questions, which is also the time that workers have to reply.",
)
@click.option("--once", is_flag=True, help="Ask once and print what there is.")
@click.option("--sort", type=click.Choice(list(rows.SORTS)), default="held", show_default=True)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=1),
    show_default="the terminal's height; all in a pipe",
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
    """Show the leases of all workers, live. Keys: q quits, s sorts by the next column.

    In a pipe, or without rich, it prints a table of plain text at each interval. A solo worker
    replies while its task runs, but not while a plain one does.
    """
    watch = Watch(ctx.obj.app, destination, interval)
    replies = watch.ask_once()
    if once:
        silent = tell_silent(destination, replies, interval)
        _print(watch, sort, lines)
        if silent:
            ctx.exit(1 if replies else EX_UNAVAILABLE)
        return
    with suppress(KeyboardInterrupt):
        _follow(watch, sort, lines)


def _follow(watch: Watch, sort: str, lines: int | None) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the terminal is restored
    threading.Thread(target=watch.run, name="celery-lease-top", daemon=True).start()
    try:
        if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            try:
                from celery_lease.cli.paint import live  # noqa: PLC0415  (an extra)
            except ImportError:
                click.echo("celery-lease[rich] makes this a live table", err=True)
            else:
                with live() as show:
                    _draw(watch, show, sort, lines)
                return
        _print_again_and_again(watch, sort, lines)
    finally:
        watch.over.set()


def _draw(watch: Watch, show: Callable[..., None], sort: str, lines: int | None) -> None:
    with pressed() as key:
        while True:
            found = watch.fleet.rows(sort, watch.clock.now())
            headline = f"{watch.fleet.headline(found)}   by {sort}; q quits, s sorts"
            most = _most(lines)
            show(headline, found[:most], _cells(found[:most]), len(found) - most)
            match key(DRAW_INTERVAL):
                case "q":
                    return
                case "s":
                    names = list(rows.SORTS)
                    sort = names[(names.index(sort) + 1) % len(names)]


def _print_again_and_again(watch: Watch, sort: str, lines: int | None) -> None:
    shown: float | None = None
    while not watch.over.is_set():
        if watch.fleet.trouble:
            click.echo(watch.fleet.trouble, err=True)
        elif watch.fleet.asked_at != shown:
            shown = watch.fleet.asked_at
            _print(watch, sort, lines)
            click.echo()
        watch.over.wait(watch.interval)


def _print(watch: Watch, sort: str, lines: int | None) -> None:
    found = watch.fleet.rows(sort, watch.clock.now())
    most = lines or (_most(None) if sys.stdout.isatty() else len(found))
    click.echo(watch.fleet.headline(found))
    for line in rows.text(_cells(found[:most])):
        click.echo(line)
    if len(found) > most:
        click.echo(f"and {len(found) - most} more")


def _most(lines: int | None) -> int:
    """Return how many leases fit on the screen, which may change its size."""
    fitting = max(1, shutil.get_terminal_size().lines - FRAME)
    return fitting if lines is None else min(lines, fitting)


def _cells(found: Sequence[Row]) -> list[tuple[str, ...]]:
    now = SystemClock().wall().timestamp()
    return [rows.cells(row, now) for row in found]
