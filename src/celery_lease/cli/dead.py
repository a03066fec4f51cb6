"""``celery -A proj lease dead``: messages that were lost too often, and what to do with them."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from celery_lease import settings
from celery_lease.cli.broker import driver_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery import Celery

    from celery_lease.core.dead import DeadLetter, DeadLetters

QUEUES = click.option(
    "-q",
    "--queue",
    "queues",
    multiple=True,
    help="Only this dead-letter queue; may be repeated. All of them if left out.",
)
EVERY = click.option("--all", "every", is_flag=True, help="All of them instead of some.")
TASKS = click.argument("tasks", metavar="TASK_ID...", nargs=-1)


@click.group()
def dead() -> None:
    """Messages whose deliveries ended by loss too often."""


@dead.command(name="list")
@QUEUES
@click.pass_context
def list_(ctx: click.Context, queues: tuple[str, ...]) -> None:
    """List dead letters, the oldest first."""
    with _opened(ctx.obj.app, queues) as (letters, named):
        for letter in _letters(letters, named):
            click.echo(
                f"{_when(letter.died_at)}  {letter.queue}  {letter.task}[{letter.task_id}]  "
                f"lost {letter.losses} times"
            )


@dead.command()
@click.argument("task_id")
@QUEUES
@click.pass_context
def show(ctx: click.Context, task_id: str, queues: tuple[str, ...]) -> None:
    """Show a dead letter with the history of its deliveries, as JSON."""
    with _opened(ctx.obj.app, queues) as (letters, named):
        for letter in _chosen(letters, named, [task_id]):
            click.echo(json.dumps(_facts(letter), indent=2, ensure_ascii=False))


@dead.command()
@TASKS
@EVERY
@QUEUES
@click.pass_context
def retry(ctx: click.Context, tasks: tuple[str, ...], every: bool, queues: tuple[str, ...]) -> None:
    """Send dead letters back to the queues they came from, with nothing counted against them."""
    with _opened(ctx.obj.app, queues) as (letters, named):
        _each(_chosen(letters, named, None if every else tasks), letters.retry, "sent back")


@dead.command()
@TASKS
@EVERY
@QUEUES
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
@click.pass_context
def purge(
    ctx: click.Context,
    tasks: tuple[str, ...],
    every: bool,
    queues: tuple[str, ...],
    force: bool,
) -> None:
    """Throw dead letters away."""
    with _opened(ctx.obj.app, queues) as (letters, named):
        chosen = _chosen(letters, named, None if every else tasks)
        if not force:
            click.confirm(f"throw {len(chosen)} messages away for good?", abort=True)
        _each(chosen, letters.purge, "thrown away")


@contextmanager
def _opened(app: Celery, queues: Sequence[str]) -> Iterator[tuple[DeadLetters, Sequence[str]]]:
    """Yield an app's dead letters and the queues to look at; if none is named, what holds some."""
    with driver_of(app, "buries") as driver:
        letters = driver.dead_letters()
        yield letters, queues or letters.queues(likely(app))


def likely(app: Celery) -> list[str]:
    """Return the dead-letter queues of the queues that an app knows."""
    of = settings.load(app.conf).dead_letter_queue_of
    return [of(queue) for queue in app.amqp.queues]


def _letters(letters: DeadLetters, queues: Sequence[str]) -> Iterator[DeadLetter]:
    for queue in queues:
        yield from letters.letters(queue)


def _chosen(
    letters: DeadLetters, queues: Sequence[str], tasks: Sequence[str] | None
) -> list[DeadLetter]:
    """Return the letters of some tasks; None: all letters. Read before any of them is moved."""
    if tasks is not None and not tasks:
        raise click.UsageError("name tasks by their ids, or say --all")
    chosen = [each for each in _letters(letters, queues) if tasks is None or each.task_id in tasks]
    missing = set(tasks or ()) - {each.task_id for each in chosen}
    if missing:
        raise click.ClickException(f"no dead letter of task {', '.join(sorted(missing))}")
    return chosen


def _each(chosen: list[DeadLetter], deal: Callable[[DeadLetter], bool], done: str) -> None:
    count = 0
    for letter in chosen:
        if deal(letter):
            count += 1
        else:
            click.echo(f"{letter.task}[{letter.task_id}] is gone already", err=True)
    click.echo(f"{count} messages {done}")


def _facts(letter: DeadLetter) -> dict[str, Any]:
    return {
        "task": letter.task,
        "task_id": letter.task_id,
        "queue": letter.queue,
        "origin": letter.origin,
        "died": _when(letter.died_at),
        "losses": letter.losses,
        "history": [_loss(each) for each in letter.history],
        "headers": letter.headers,
        "body": letter.body,
    }


def _loss(entry: Any) -> dict[str, Any]:
    """Return what people ask of a lost delivery; what the broker needed of it is left out."""
    return {
        "delivery": entry.get("deliveries"),
        "worker": entry.get("worker"),
        "token": entry.get("token"),
        "received": _when(entry.get("since")),
        "ended": _when(entry.get("ended")),
        "reason": entry.get("reason"),
    }


def _when(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
