"""``celery -A proj lease trace``: record what happens to leases for a while, and draw it.

Workers are asked for events as ``celery control enable_events`` does, and those that sent none
before are told to stop at the end, whatever that is.
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
from celery_lease.cli.broker import reached
from celery_lease.cli.timeline import Timeline
from celery_lease.cli.workers import EX_UNAVAILABLE, asker, tell_silent
from celery_lease.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery import Celery

    #: Asks some workers by a command, within some seconds, and returns their replies by name.
    Ask = Callable[[str, Sequence[str], float, dict[str, Any]], dict[str, Any]]

#: Seconds that workers have for their reply, and within which a worker sends what happened.
REPLY, SENT = 1.0, 1.5
#: Seconds between two looks at whether the recording is over.
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
    """Record who holds which task, of all or of TASK_ID, and draw one bar for each holder.

    Ends when that task is done, or when the time is over. What happened before is not shown. Its
    exit code is 69 if no worker replied, 1 if nothing happened.
    """
    timeline, app = Timeline(task_id), ctx.obj.app
    with reached(app.connection_for_write()) as connection:
        _record(app, asker(app, connection), timeline, seconds)
    if not timeline.bars:
        what = f"task {task_id}" if task_id else "any lease"
        raise click.ClickException(f"no event of {what} within {seconds:g} s")
    plain = not (sys.stdout.encoding or "").lower().startswith("utf")
    for line in drawing.text(timeline, shutil.get_terminal_size((120, 24)).columns, plain=plain):
        click.echo(line)
    if output is not None:
        output.write(drawing.svg(timeline))


def _record(app: Celery, ask: Ask, timeline: Timeline, seconds: float) -> None:
    clock, end = SystemClock(), threading.Event()
    with reached(app.connection_for_read()) as own, _listening(app, own, timeline) as drain:
        workers = _Workers(ask)
        click.echo(f"recording, {len(workers.names)} workers replied", err=True)
        with _until_told(end):
            try:
                ends = clock.now() + seconds
                while clock.now() < ends and not timeline.is_over and not end.is_set():
                    workers.add(drain())
                ends = clock.now() + SENT
                while clock.now() < ends and not timeline.is_over:
                    drain()
            finally:
                workers.restore()


class _Workers:
    """Those that were asked for events."""

    def __init__(self, ask: Ask) -> None:
        """Ask all of them.

        Raises:
            SystemExit: None of them replied; stderr says so.
        """
        self._ask = ask
        replies = ask("enable_events", (), REPLY, {})
        if tell_silent((), replies, REPLY):
            raise SystemExit(EX_UNAVAILABLE)
        self.names = set(replies)
        self._silent_before = {
            name for name, reply in replies.items() if reply.get("ok") == "task events enabled"
        }

    def add(self, online: set[str]) -> None:
        """Ask workers that came since, too."""
        if new := online - self.names:
            self.names |= new
            self._silent_before |= new
            self._ask("enable_events", sorted(new), REPLY, {})

    def restore(self) -> None:
        """Tell those that sent no events before to send none again."""
        if self._silent_before:
            self._ask("disable_events", sorted(self._silent_before), REPLY, {})


@contextmanager
def _listening(app: Celery, own: Any, timeline: Timeline) -> Iterator[Callable[[], set[str]]]:
    """Yield what hands events that have come to the timeline, and returns who came online."""
    online: set[str] = set()

    def hear(event: dict[str, Any]) -> None:
        if event["type"] == "worker-online":
            online.add(event["hostname"])
        timeline.add(event)

    receiver = app.events.Receiver(own, handlers={"*": hear})
    with receiver.consumer_context(wakeup=False) as (connection, _, _):

        def drain() -> set[str]:
            with suppress(TimeoutError):
                connection.drain_events(timeout=LOOK)
            return online

        yield drain


@contextmanager
def _until_told(end: threading.Event) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the recording, not the command."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    for each in before:
        signal.signal(each, lambda *_: end.set())
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
