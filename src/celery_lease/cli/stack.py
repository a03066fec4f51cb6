"""``celery -A proj lease stack``: what a running task is doing now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_lease.cli.workers import TIMEOUT, replies_about
from celery_lease.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NO_STACK = "no stack: its process offers none, or does not answer"


@click.command()
@click.argument("task_id", metavar="TASK_ID")
@TIMEOUT
@click.pass_context
def stack(ctx: click.Context, task_id: str, timeout: float) -> None:
    """Show the Python stack of a running task.

    The innermost call comes first. The task goes on. Exits with status 1 if no worker that replied
    runs the task, with 69 if no worker replied.
    """
    (task_id,), replies = replies_about(
        ctx, [task_id], timeout, "lease_stack", lambda ids: {"task_id": ids[0]}
    )
    found = seen(replies)
    for worker, what in found:
        click.echo("\n".join(in_words(worker, what)))
    if not found:
        missing = f"not running at the {counted(len(replies), 'worker')} that replied"
        click.echo(f"{task_id}: {missing}", err=True)
        ctx.exit(1)


def seen(replies: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the workers that run the task, with what they saw of it."""
    return [
        (worker, what)
        for worker, what in sorted(replies.items())
        if isinstance(what, dict) and "doing" in what
    ]


def in_words(worker: str, what: Mapping[str, Any]) -> Iterator[str]:
    """Yield what one worker saw, line by line."""
    yield f"{what['task']}[{what['id']}] on {worker}, process {what['pid']}: {what['doing']}"
    yield what["stack"] or NO_STACK
