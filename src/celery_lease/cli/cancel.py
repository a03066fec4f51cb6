"""``celery -A proj lease cancel``: cancels tasks, so that they clean up and end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import click

from celery_lease.cli.broker import EX_UNAVAILABLE, reached
from celery_lease.cli.ids import expanded_by_leases
from celery_lease.cli.results import result_of
from celery_lease.cli.rows import span
from celery_lease.cli.workers import (
    TIMEOUT,
    asker,
    best_answers,
    report_silent,
    warn_of_namesakes,
)
from celery_lease.core.clock import SystemClock
from celery_lease.core.words import counted
from celery_lease.view import Sources
from celery_lease.view.asking import node_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

    from celery_lease.view.asking import Ask

#: Seconds between two checks whether a task has ended.
LOOK_INTERVAL = 0.3
#: The states in a worker's reply, their texts, and whether the cancellation works. From the
#: strongest effect to the weakest: two workers may know the same task.
WORDS = {
    "told": ("its next beat raises TaskCancelled", True),
    "revoked": ("it waited there, and is revoked", True),
    "waits": ("it waits there, and is revoked when its time comes", True),
    "lost": ("it has lost its lease; the worker that receives its message revokes it", True),
    "plain": ("it runs without a lease, and has no beats", False),
}


@click.command()
@click.argument("tasks", metavar="TASK_ID...", nargs=-1, required=True)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait so long for the cancelled tasks to end; exit with status 1 if one has not.",
)
@TIMEOUT
@click.pass_context
def cancel(ctx: click.Context, tasks: tuple[str, ...], wait: float, timeout: float) -> None:
    """Cancel tasks: their next beat raises TaskCancelled.

    A task that has not started is revoked, wherever its message is. A task that does not beat is
    not reached: its watchdog ends it, or celery control terminate. Exits with status 1 if a task
    was not found or cannot be cancelled, with 69 if no worker replied.
    """
    app, ids = ctx.obj.app, list(dict.fromkeys(tasks))
    with reached(app.connection_for_write()) as connection:
        ask = asker(app, connection)
        ids = expanded_by_leases(ids, Sources(ask=ask), timeout)
        replies = ask("lease_cancel", [], timeout, {"task_id": ids})
        if report_silent([], replies, timeout):
            ctx.exit(EX_UNAVAILABLE)
        warn_of_namesakes(ask.duplicates)
        found = best_answers(replies, WORDS)
        lines = [outcome(app, task_id, found.get(task_id), len(replies)) for task_id in ids]
        for text, good in lines:
            click.echo(text, err=not good)
        flagged = {
            task_id: name for task_id, (name, what) in found.items() if what["state"] == "told"
        }
        left = _wait(app, ask, flagged, wait, timeout) if wait else {}
    for task_id, what in left.items():
        click.echo(f"{task_id}: {what} after {wait:g} s", err=True)
    if left or not all(good for _, good in lines):
        ctx.exit(1)


def outcome(
    app: Celery, task_id: str, found: tuple[str, Mapping[str, Any]] | None, workers: int
) -> tuple[str, bool]:
    """Return the result for one task as a text, and whether the cancellation works."""
    if found is None:
        return f"{task_id}: {_missing(app, task_id, workers)}", False
    name, what = found
    words, good = WORDS[what["state"]]
    named = f"{what['task']}[{task_id}]" if "task" in what else task_id
    return f"{named} on {name}: {words}{_caution(task_id, what)}", good


def _missing(app: Celery, task_id: str, workers: int) -> str:
    kept = result_of(app, task_id)
    if kept and kept.is_final:
        return f"is over already: {kept.state}"
    replied = f"{counted(workers, 'worker')} that replied"
    return (
        f"not found at the {replied}. Workers refuse it from now on: if it waits in a queue, it is "
        "revoked when one of them receives it"
    )


def _caution(task_id: str, what: Mapping[str, Any]) -> str:
    """Return a warning about a task that may not beat, or cannot."""
    end_it = f"celery control terminate SIGTERM {task_id}"
    if what["state"] == "plain":
        return f". To end it: {end_it}"
    if what["state"] != "told":
        return ""
    if what["mode"] != "heartbeat":
        return f", if it beats at all in lease_mode {what['mode']!r}. To end it: {end_it}"
    silence, left = what["beat_age"], what["remaining"]
    if silence is None:
        return ""
    if silence > left:
        return (
            f"; it has not beaten for {span(silence)}. If it does not in {span(left)}, its "
            f"watchdog ends it; at once: {end_it}"
        )
    return f"; the last was {span(silence)} ago"


def _wait(
    app: Celery, ask: Ask, flagged: dict[str, str], wait: float, timeout: float
) -> dict[str, str]:
    """Wait until the tasks have ended, or the time is over; return what is known of the rest.

    A worker that stops is gone after its last task, and does not reply: the result tells then.
    """
    clock, rest = SystemClock(), threading.Event()
    ends, left, replied = clock.now() + wait, dict(flagged), set(flagged.values())

    def has_replied(name: str) -> bool:
        return bool(replied & {name, node_of(name)})

    def has_ended(task_id: str) -> bool:
        kept = result_of(app, task_id)
        return kept is not None and kept.is_final

    while left and (now := clock.now()) < ends:
        names = sorted({node_of(name) for name in left.values()})
        replies = ask("leases", names, max(0.1, min(timeout, ends - now)), {"task_id": list(left)})
        held = {row["id"] for rows in replies.values() for row in rows}
        replied = {*replies, *map(node_of, replies)}
        left = {
            task_id: name
            for task_id, name in left.items()
            if task_id in held or not (has_replied(name) or has_ended(task_id))
        }
        if left:
            rest.wait(LOOK_INTERVAL)
    return {
        task_id: f"still on {name}"
        if has_replied(name)
        else f"no result, and no reply from {name},"
        for task_id, name in left.items()
    }
