"""``celery -A proj lease hand-over``: have tasks end, and go on from their checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_lease.cli.workers import TIMEOUT, best_answers, replies_about
from celery_lease.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What a worker can say of a task, and what that means. If two workers know the same task, the
#: first of these counts.
WORDS = {
    "told": "its next beat raises ShutdownRequested, and its message is requeued",
    "not_interruptible": "not handed over: the task is not lease_interruptible",
    "waits": "not handed over: it has not started. To requeue what waits: lease drain",
    "lost": "not handed over: it has lost its lease, and its next beat raises LeaseLost",
    "plain": "not handed over: it runs without a lease",
}


@click.command("hand-over")
@click.argument("tasks", metavar="TASK_ID...", nargs=-1, required=True)
@TIMEOUT
@click.pass_context
def hand_over(ctx: click.Context, tasks: tuple[str, ...], timeout: float) -> None:
    """End interruptible tasks at their next beat.

    Their messages are requeued, nothing is counted against them, and the next run continues from
    the checkpoint. The same worker may receive a message again, unless it is drained. Exits with
    status 1 if a task was not found or cannot be handed over, with 69 if no worker replied.
    """
    ids, replies = replies_about(
        ctx, list(dict.fromkeys(tasks)), timeout, "lease_hand_over", lambda ids: {"task_id": ids}
    )
    lines = outcomes(ids, replies)
    for text, good in lines:
        click.echo(text, err=not good)
    if not all(good for _, good in lines):
        ctx.exit(1)


def outcomes(ids: list[str], replies: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Return what came of each task, and whether it is handed over."""
    found = best_answers(replies, WORDS)
    return [_outcome(each, found.get(each), len(replies)) for each in ids]


def _outcome(
    task_id: str, found: tuple[str, Mapping[str, Any]] | None, workers: int
) -> tuple[str, bool]:
    if found is None:
        return f"{task_id}: not found at the {counted(workers, 'worker')} that replied", False
    worker, what = found
    named = f"{what['task']}[{task_id}]" if "task" in what else task_id
    return f"{named} on {worker}: {WORDS[what['state']]}", what["state"] == "told"
