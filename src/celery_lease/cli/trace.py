"""``celery -A proj lease trace``: records the events of leases for a while, and draws them.

Workers are asked for events as by ``celery control enable_events``; those that sent none before are
asked to stop at the end, also after an error.
"""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

import click

from celery_lease.cli import drawing
from celery_lease.cli.broker import EX_UNAVAILABLE, reached
from celery_lease.cli.ids import expanded_by_leases
from celery_lease.cli.sources import sources
from celery_lease.cli.timeline import Timeline
from celery_lease.cli.workers import CannotAsk, report_silent, warn_of_namesakes
from celery_lease.core.clock import SystemClock
from celery_lease.core.words import counted
from celery_lease.view import Sources, view_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Celery

    from celery_lease.view.asking import Ask

#: Seconds for the workers' replies, and within which a worker sends its events.
REPLY, SENT = 1.0, 1.5
#: Seconds between two checks whether the recording is over.
LOOK = 0.2


@click.command()
@click.argument("task_id", required=False)
@click.option(
    "-s",
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=30.0,
    show_default=True,
    help="Record for so long at most; Ctrl-C ends it before.",
)
@click.option(
    "-o",
    "--output",
    type=click.File("w", encoding="utf-8", lazy=False, atomic=True),
    metavar="FILE.svg",
    help="Also draw a picture.",
)
@click.pass_context
def trace(ctx: click.Context, task_id: str | None, seconds: float, output: IO[str] | None) -> None:
    """Record the deliveries of tasks as bars.

    It begins with the leases that are held now, of all tasks or of TASK_ID, and ends with that task
    or after --seconds. Exits with status 69 if no worker replied, with 1 if there was no lease.
    """
    timeline, app = Timeline(task_id), ctx.obj.app
    with sources(app) as found:
        if task_id and found.ask is not None:
            (task_id,) = expanded_by_leases([task_id], found, REPLY)
            timeline.task_id = task_id
        _record(app, found, timeline, seconds)
    if not timeline.bars:
        what = f"task {task_id}" if task_id else "any lease"
        raise click.ClickException(f"no lease and no event of {what} within {seconds:g} s")
    plain = not (sys.stdout.encoding or "").lower().startswith("utf")
    for line in drawing.text(timeline, shutil.get_terminal_size((120, 24)).columns, plain=plain):
        click.echo(line)
    if output is not None:
        output.write(drawing.svg(timeline))


def _record(app: Celery, found: Sources, timeline: Timeline, seconds: float) -> None:
    if found.ask is None:
        raise CannotAsk(str(app.connection_for_write().transport.driver_type))
    clock, end = SystemClock(), threading.Event()
    with reached(app.connection_for_read()) as own, listening(app, own, timeline.add) as drain:
        workers = _begun(found.ask)
        try:
            # Now that events are received: leases that end from here on have an event.
            _begin_with_what_is_held(found, timeline, clock)
            click.echo(f"recording, {counted(len(workers.names), 'worker')} replied", err=True)
            with _until_signalled(end):
                ends = clock.now() + seconds
                while clock.now() < ends and not timeline.is_over and not end.is_set():
                    workers.add(drain())
                timeline.until = clock.wall().timestamp()
                ends = clock.now() + SENT
                while clock.now() < ends and not timeline.is_over:
                    drain()
        finally:
            workers.restore()


def _begin_with_what_is_held(found: Sources, timeline: Timeline, clock: SystemClock) -> None:
    view = view_of(found, REPLY, [timeline.task_id] if timeline.task_id else [])
    warn_of_namesakes(view.duplicates)
    for row in view.rows:
        timeline.begin_with(row, clock.wall().timestamp())


def _begun(ask: Ask) -> Listeners:
    """Ask all workers for events.

    Raises:
        SystemExit: None of them replied; stderr has the reason.
    """
    workers = Listeners(ask)
    if report_silent((), workers.begin(), REPLY):
        raise SystemExit(EX_UNAVAILABLE)
    return workers


class Listeners:
    """The workers that were asked for events."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.names: set[str] = set()
        self._silent_before: set[str] = set()

    def begin(self) -> dict[str, Any]:
        """Ask all workers for events; return their replies."""
        replies = self._ask("enable_events", (), REPLY, {})
        self.names |= set(replies)
        self._silent_before |= {
            name for name, reply in replies.items() if reply.get("ok") == "task events enabled"
        }
        return replies

    def add(self, online: set[str]) -> None:
        """Ask workers that came online since, too."""
        if new := online - self.names:
            self.names |= new
            self._silent_before |= new
            self._ask("enable_events", sorted(new), REPLY, {})

    def restore(self) -> None:
        """Ask the workers that sent no events before to stop sending them."""
        if self._silent_before:
            self._ask("disable_events", sorted(self._silent_before), REPLY, {})


@contextmanager
def listening(
    app: Celery, own: Any, take: Callable[[dict[str, Any]], None]
) -> Iterator[Callable[[], set[str]]]:
    """Yield a function that passes new events to *take* and returns the workers now online."""
    online: set[str] = set()

    def hear(event: dict[str, Any]) -> None:
        if event["type"] == "worker-online":
            online.add(event["hostname"])
        take(event)

    receiver = app.events.Receiver(own, handlers={"*": hear})
    with receiver.consumer_context(wakeup=False) as (connection, _, _):

        def drain() -> set[str]:
            with suppress(TimeoutError):
                connection.drain_events(timeout=LOOK)
            return online

        drain()  # on Redis, only this subscribes: earlier events would be lost
        yield drain


@contextmanager
def _until_signalled(end: threading.Event) -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end the recording, not the command."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    for each in before:
        signal.signal(each, lambda *_: end.set())
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
