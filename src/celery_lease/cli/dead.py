"""``celery -A proj lease dead``: lists, shows, replays and discards dead letters."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from celery_lease import settings
from celery_lease.cli.broker import driver_of
from celery_lease.cli.ids import expanded
from celery_lease.core.dead import DeadLetter, DeadLetters, reason_of
from celery_lease.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from celery import Celery


QUEUES = click.option(
    "-q",
    "--queue",
    "queues",
    multiple=True,
    help="Only this dead-letter queue, or that of this queue; may be repeated. All of them if left "
    "out.",
)
EVERY = click.option("--all", "every", is_flag=True, help="All of them instead of some.")
TASKS = click.argument("tasks", metavar="TASK_ID...", nargs=-1)


@click.group()
def dead() -> None:
    """List, show, retry or purge dead letters."""


@dead.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, each as by show.")
@QUEUES
@click.pass_context
def list_(ctx: click.Context, as_json: bool, queues: tuple[str, ...]) -> None:
    """List dead letters, the oldest first."""
    with opened(ctx.obj.app, queues) as (letters, named):
        if as_json:
            found = [facts(letter) for letter in letters_of(letters, named)]
            click.echo(json.dumps({"letters": found}, indent=2, ensure_ascii=False))
            return
        if not named and not queues:
            click.echo("no dead letters", err=True)
        for letter in letters_of(letters, named):
            click.echo(
                f"{when(letter.died_at)}  {letter.queue}  {letter.task}[{letter.task_id}]  "
                f"lost {counted(letter.losses, 'time')}"
            )


@dead.command()
@click.argument("task_id")
@QUEUES
@click.pass_context
def show(ctx: click.Context, task_id: str, queues: tuple[str, ...]) -> None:
    """Show a dead letter with its history, as JSON."""
    with opened(ctx.obj.app, queues) as (letters, named):
        for letter in chosen_of(letters, named, [task_id]):
            click.echo(json.dumps(facts(letter), indent=2, ensure_ascii=False))


@dead.command()
@TASKS
@EVERY
@QUEUES
@click.pass_context
def retry(ctx: click.Context, tasks: tuple[str, ...], every: bool, queues: tuple[str, ...]) -> None:
    """Replay dead letters to their queues.

    Their losses are no longer counted.
    """
    with opened(ctx.obj.app, queues) as (letters, named):
        _each(chosen_of(letters, named, None if every else tasks), letters.retry, "replayed")


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
    """Discard dead letters: delete them."""
    with opened(ctx.obj.app, queues) as (letters, named):
        chosen = chosen_of(letters, named, None if every else tasks)
        if not force:
            click.confirm(f"discard {counted(len(chosen), 'message')} for good?", abort=True)
        _each(chosen, letters.purge, "discarded")


@contextmanager
def opened(app: Celery, queues: Sequence[str]) -> Iterator[tuple[DeadLetters, Sequence[str]]]:
    """Yield an app's dead letters and the queues to read; by default those that are not empty."""
    with driver_of(app, "dead_letters") as driver:
        letters = driver.dead_letters()
        named = [queue for queue in queues if not _is_of_work(app, queue)]
        held = letters.queues([*likely(app), *named, *_dead_of(app, queues)])
        yield letters, _named(app, held, queues) if queues else held


def _dead_of(app: Celery, queues: Iterable[str]) -> list[str]:
    of = settings.load(app.conf).dead_letter_queue_of
    return [of(queue) for queue in queues]


def _named(app: Celery, held: Sequence[str], queues: Sequence[str]) -> list[str]:
    """Return the dead-letter queues for the names that a user gave.

    A name is that of a dead-letter queue, or that of the queue whose dead letters it takes.
    """
    found: list[str] = []
    for queue, target in zip(queues, _dead_of(app, queues), strict=True):
        # Work queues are not read: where reading hides messages, that would stop the work.
        names = [target] if _is_of_work(app, queue) else [queue, target]
        names += [each.replace(".", "_") for each in names]  # pgmq's names
        there = [each for each in names if each in held]
        if not there:
            click.echo(f"no dead letters in {' or '.join(dict.fromkeys(names[:-1]))}", err=True)
        found += there[:1]
    return list(dict.fromkeys(found))


def _is_of_work(app: Celery, queue: str) -> bool:
    """Whether a queue takes tasks, and is not the dead-letter queue of another one."""
    return queue in app.amqp.queues and queue not in likely(app)


def likely(app: Celery) -> list[str]:
    """Return the names of the dead-letter queues of the queues that an app knows."""
    return _dead_of(app, app.amqp.queues)


def letters_of(letters: DeadLetters, queues: Sequence[str]) -> Iterator[DeadLetter]:
    """Yield the letters in *queues*."""
    for queue in queues:
        yield from letters.letters(queue)


def chosen_of(
    letters: DeadLetters, queues: Sequence[str], tasks: Sequence[str] | None
) -> list[DeadLetter]:
    """Return the letters of some tasks; None: all. They are read before any of them is moved."""
    if tasks is not None and not tasks:
        raise click.UsageError("name tasks by their ids, or say --all")
    every = list(letters_of(letters, queues))
    if tasks is not None:
        tasks = [expanded(each, [letter.task_id for letter in every]) for each in tasks]
    chosen = [each for each in every if tasks is None or each.task_id in tasks]
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
    click.echo(f"{counted(count, 'message')} {done}")


def facts(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as a JSON document."""
    return {
        "task": letter.task,
        "task_id": letter.task_id,
        "queue": letter.queue,
        "origin": letter.origin,
        "died": when(letter.died_at),
        "losses": letter.losses,
        "history": [loss(each) for each in letter.history],
        "headers": letter.headers,
        "body": letter.body,
    }


def loss(entry: Any) -> dict[str, Any]:
    """Return the facts of a lost delivery for display, without those that only the broker needs."""
    return {
        "delivery": entry.get("deliveries"),
        "worker": entry.get("worker"),
        "token": entry.get("token"),
        "received": when(entry.get("since")),
        "ended": when(entry.get("ended")),
        "reason": reason_of(entry),
        **{name: entry[name] for name in ("cause", "note", "done", "total") if name in entry},
        **({"stack": str(entry["stack"]).splitlines()} if "stack" in entry else {}),
    }


def when(seconds: float | None) -> str:
    """Return seconds since 1970 as an ISO date in UTC."""
    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
