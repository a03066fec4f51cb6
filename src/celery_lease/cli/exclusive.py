"""``celery -A proj lease keys``: who holds an exclusive key, who waits for it."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from celery_lease import brokers
from celery_lease.cli.broker import called, reached
from celery_lease.cli.rows import span
from celery_lease.core.clock import SystemClock
from celery_lease.core.delivery import Answer
from celery_lease.core.keys import KeyUse, Parked
from celery_lease.core.words import counted
from celery_lease.task.keys import able

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery import Celery

    from celery_lease.core.driver import Driver

#: Messages deleted in one call.
PIECE = 100
HEADERS = ("KEY", "HOLDER", "LIMIT", "HELD", "WAITING", "OLDEST")


@click.group(name="keys", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
@click.pass_context
def exclusive_keys(ctx: click.Context, as_json: bool) -> None:
    """Show the exclusive keys that are held or waited for, by the broker's record."""
    if ctx.invoked_subcommand is not None:
        return
    found = keys_in_use(ctx.obj.app)
    if as_json:
        click.echo(json.dumps(document(found), indent=2, ensure_ascii=False))
        return
    now = SystemClock().wall().timestamp()
    for line in table(found, now):
        click.echo(line)


@exclusive_keys.command()
@click.argument("names", metavar="KEY...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All of them instead of some.")
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
@click.pass_context
def purge(ctx: click.Context, names: tuple[str, ...], every: bool, force: bool) -> None:
    """Delete the messages that wait for keys, as celery purge does with those in queues.

    Tasks that run are not touched, and no result is stored.
    """
    if not names and not every:
        raise click.UsageError("name keys, or say --all")
    with _driver_of(ctx.obj.app) as driver:
        tags = [
            user.tag
            for use in driver.keys_in_use()
            if every or use.key in names
            for user in use.parked
        ]
        if not force:
            click.confirm(f"delete {counted(len(tags), 'message')} for good?", abort=True)
        pieces = [tags[start : start + PIECE] for start in range(0, len(tags), PIECE)]
        answers = [each for piece in pieces for each in driver.complete(piece)]
    click.echo(f"{counted(answers.count(Answer.HELD), 'message')} deleted")
    if Answer.UNKNOWN in answers:
        raise click.ClickException("the broker did not answer for the others")


def keys_in_use(app: Celery) -> list[KeyUse]:
    """Return the keys that are held or waited for.

    Raises:
        click.ClickException: The broker cannot be reached, or has no keys.
    """
    with _driver_of(app) as driver:
        return list(driver.keys_in_use())


def document(found: Sequence[KeyUse]) -> dict[str, Any]:
    """Return keys as a JSON document."""
    return {"keys": [asdict(each) for each in found]}


def table(found: Sequence[KeyUse], now: float) -> Iterator[str]:
    """Yield a table of keys, a line each; *now* is seconds since 1970."""
    lines = [HEADERS, *(_cells(each, now) for each in found)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _cells(use: KeyUse, now: float) -> tuple[str, ...]:
    first = use.holders[0] if use.holders else None
    more = f" +{len(use.holders) - 1}" if len(use.holders) > 1 else ""
    oldest = min((user.since for user in use.parked), default=None)
    return (
        use.key,
        f"{first.task}[{first.task_id}]{more}" if first else "-",
        str(use.limit),
        span(now - first.since) if first else "-",
        str(len(use.parked)),
        "-" if oldest is None else span(now - oldest),
    )


def waits_for(driver: Driver, task_id: str, key: str | None = None) -> Parked | None:
    """Return for which key a task's message waits, and where in its line; None: for none.

    *key* is that key, if it is known: "" for none, None for unknown.
    """
    key = driver.key_awaited_by(task_id) if key is None else key
    use = driver.key_in_use(key) if key else None
    for position, user in enumerate(use.parked if use else (), start=1):
        if use and user.task_id == task_id:
            return Parked(use=use, user=user, position=position)
    return None


@contextmanager
def _driver_of(app: Celery) -> Iterator[Driver]:
    """Yield a driver for an app's broker that has keys.

    Raises:
        click.ClickException: The broker cannot be reached, or has none.
    """
    with reached(app.connection_for_read()) as connection:
        transport = connection.transport.driver_type
        if not brokers.driver_class(transport).capabilities.keys:
            others = ", ".join(map(called, able()))
            raise click.ClickException(
                f"{called(transport)} has no exclusive keys; brokers that have: {others}"
            )
        with closing(brokers.driver(connection.default_channel)) as driver:
            yield driver
