"""``celery -A proj lease cancel``: ask tasks to clean up and end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import click

from celery_lease.cli.broker import reached
from celery_lease.cli.results import is_final, state_of
from celery_lease.cli.rows import span
from celery_lease.cli.workers import EX_UNAVAILABLE, TIMEOUT, asker, tell_silent
from celery_lease.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from celery import Celery

    Found = dict[str, tuple[str, Mapping[str, Any]]]
    Ask = Callable[[str, list[str], float, dict[str, Any]], dict[str, Any]]

#: Silence, as a share of what is left of a lease, from which on it is mentioned.
LONG = 1.0
#: Seconds between two looks whether a task has ended.
LOOK_INTERVAL = 0.3
#: What a worker can say of a task, what that means, and whether it is what was wanted.
WORDS = {
    "told": ("its next beat tells it", True),
    "revoked": ("it waited there, and is revoked", True),
    "waits": ("it waits there, and is revoked when its time comes", True),
    "lost": (
        "it has lost its lease and is told so; whoever has its message now revokes it",
        True,
    ),
    "plain": ("it runs without a lease and has no beats to tell it", False),
}
#: From the least to the most that can be done: two workers may know the same task.
RANKS = ("plain", "lost", "waits", "revoked", "told")


@click.command()
@click.argument("tasks", metavar="TASK_ID...", nargs=-1, required=True)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait so long for the tasks that were told to end; end with 1 if one has not.",
)
@TIMEOUT
@click.pass_context
def cancel(ctx: click.Context, tasks: tuple[str, ...], wait: float, timeout: float) -> None:
    """Make the next beat of tasks raise TaskCancelled, so that they clean up and end as REVOKED.

    A task that waits is revoked, wherever it waits. One that does not beat is not told: that is
    left to its watchdog, or to celery control terminate. Ends with 1 if a task was not found or
    cannot be told, with 69 if no worker replied.
    """
    app, ids = ctx.obj.app, list(dict.fromkeys(tasks))
    with reached(app.connection_for_write()) as connection:
        ask = asker(app, connection)
        replies = ask("lease_cancel", [], timeout, {"task_id": ids})
        if tell_silent([], replies, timeout):
            ctx.exit(EX_UNAVAILABLE)
        found = _found(replies)
        done = [_tell(app, task_id, found.get(task_id), len(replies)) for task_id in ids]
        told = {task_id: name for task_id, (name, what) in found.items() if what["state"] == "told"}
        left = _wait(ask, told, wait) if wait else {}
    for task_id, name in left.items():
        click.echo(f"{task_id}: still on {name} after {wait:g} s", err=True)
    if left or not all(done):
        ctx.exit(1)


def _found(replies: Mapping[str, Any]) -> Found:
    """Return for each task that a worker knows which one, and what it did about it."""
    found: Found = {}
    for name, reply in replies.items():
        for task_id, what in (reply.get("tasks") or {}).items():
            if what["state"] in RANKS and (
                task_id not in found
                or RANKS.index(what["state"]) > RANKS.index(found[task_id][1]["state"])
            ):
                found[task_id] = name, what
    return found


def _tell(
    app: Celery, task_id: str, found: tuple[str, Mapping[str, Any]] | None, workers: int
) -> bool:
    """Say what comes of one task; return whether that is what was wanted."""
    if found is None:
        click.echo(f"{task_id}: {_missing(app, task_id, workers)}", err=True)
        return False
    name, what = found
    words, good = WORDS[what["state"]]
    named = f"{what['task']}[{task_id}]" if "task" in what else task_id
    click.echo(f"{named} on {name}: {words}{_caution(task_id, what)}", err=not good)
    return good


def _missing(app: Celery, task_id: str, workers: int) -> str:
    state = state_of(app, task_id)
    if is_final(state):
        return f"is over already: {state}"
    return (
        f"is with none of the {workers} workers that replied. They refuse it from now on: if it "
        "waits in a queue, it is revoked when one of them gets it"
    )


def _caution(task_id: str, what: Mapping[str, Any]) -> str:
    """Return what to know of a task that may not beat, or cannot."""
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
    if silence > left * LONG:
        return (
            f"; it has not beaten for {span(silence)}. If it does not in {span(left)}, its "
            f"watchdog ends it; at once: {end_it}"
        )
    return f"; the last was {span(silence)} ago"


def _wait(ask: Ask, told: dict[str, str], wait: float) -> dict[str, str]:
    """Return which tasks are still held, and by whom, when all have ended or time is up."""
    clock, rest = SystemClock(), threading.Event()
    ends, left = clock.now() + wait, dict(told)
    while left and (now := clock.now()) < ends:
        names = sorted(set(left.values()))
        replies = ask("leases", names, max(0.1, ends - now), {"task_id": list(left)})
        held = _ids(replies.values())
        left = {
            task_id: name
            for task_id, name in left.items()
            if task_id in held or name not in replies
        }
        if left:
            rest.wait(LOOK_INTERVAL)
    return left


def _ids(replies: Iterable[Any]) -> set[str]:
    return {row["id"] for rows in replies for row in rows}
