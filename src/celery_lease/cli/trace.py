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
from kombu.exceptions import OperationalError

from celery_lease.cli import drawing
from celery_lease.cli.timeline import Timeline
from celery_lease.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Celery

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

    Ends when that task is done, or when the time is over. What happened before is not shown. Ends
    with 1 if no worker replied, or nothing happened.
    """
    timeline = Timeline(task_id)
    try:
        _record(ctx.obj.app, timeline, seconds)
    except (OperationalError, OSError) as exc:
        raise click.ClickException(f"the broker does not answer: {exc}") from exc
    if not timeline.bars:
        what = f"task {task_id}" if task_id else "any lease"
        raise click.ClickException(f"no event of {what} within {seconds:g} s")
    plain = not (sys.stdout.encoding or "").lower().startswith("utf")
    for line in drawing.text(timeline, shutil.get_terminal_size((120, 24)).columns, plain=plain):
        click.echo(line)
    if output is not None:
        output.write(drawing.svg(timeline))


def _record(app: Celery, timeline: Timeline, seconds: float) -> None:
    clock, end = SystemClock(), threading.Event()
    with app.connection_for_read() as own, _listening(app, own, timeline) as drain:
        names = _enable(app)
        with _until_told(end):
            try:
                click.echo(f"recording, {len(names.all)} workers replied", err=True)
                ends = clock.now() + seconds
                while clock.now() < ends and not timeline.is_over and not end.is_set():
                    names.add(app, drain())
                ends = clock.now() + SENT
                while clock.now() < ends and not timeline.is_over:
                    drain()
            finally:
                names.restore(app)


class _Names:
    """The workers that were asked for events."""

    def __init__(self) -> None:
        self.all: set[str] = set()
        self.silent_before: set[str] = set()

    def add(self, app: Celery, online: set[str]) -> None:
        """Ask workers that came since, too."""
        if new := online - self.all:
            self.all |= new
            self.silent_before |= new
            app.control.enable_events(destination=sorted(new))

    def restore(self, app: Celery) -> None:
        """Tell those that sent no events before to send none again."""
        if self.silent_before:
            app.control.disable_events(destination=sorted(self.silent_before))


def _enable(app: Celery) -> _Names:
    """Ask all workers for events.

    Raises:
        click.ClickException: None of them replied.
    """
    names = _Names()
    replies: Any = app.control.enable_events(reply=True, timeout=REPLY) or ()
    for name, reply in ((name, reply) for each in replies for name, reply in each.items()):
        names.all.add(name)
        if reply.get("ok") == "task events enabled":
            names.silent_before.add(name)
    if not names.all:
        raise click.ClickException(f"no worker replied within {REPLY:g} s")
    return names


@contextmanager
def _listening(app: Celery, own: Any, timeline: Timeline) -> Iterator[Callable[[], set[str]]]:
    """Yield what hands events that have come to the timeline, and returns who came online."""
    online: set[str] = set()

    def hear(event: dict[str, Any]) -> None:
        if event["type"] == "worker-online":
            online.add(event["hostname"])
        timeline.add(event)

    own.ensure_connection(max_retries=1)
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
