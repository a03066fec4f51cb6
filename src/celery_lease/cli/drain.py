"""``celery -A proj lease drain``: have workers finish what they run and take nothing more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import celery_lease.worker.control  # noqa: F401  (``celery control lease_drain`` knows it by this)

if TYPE_CHECKING:
    from celery import Celery


@click.command()
@click.option("--resume", is_flag=True, help="Take messages again.")
@click.option(
    "-d",
    "--destination",
    metavar="NODES",
    default="",
    help="Names of workers, with commas between them; all of them if left out.",
)
@click.option(
    "-t",
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="Seconds to wait for the workers' replies.",
)
@click.pass_context
def drain(ctx: click.Context, resume: bool, destination: str, timeout: float) -> None:
    """Let workers finish what they run and take nothing more, or let them go on.

    What they have received and not started goes back to its queue at once, for other workers. A
    drained worker stays up, and is not ready, until it is told to go on or is stopped. How far it
    is: celery inspect lease_state. Ends with 1 if a worker did not reply, or refused.
    """
    names = [name for name in destination.split(",") if name]
    replies = _tell(ctx.obj.app, "lease_resume" if resume else "lease_drain", names, timeout)
    for name, reply in sorted(replies.items()):
        click.echo(f"{name}: {reply.get('ok') or reply.get('error')}")
    silent = [name for name in names if name not in replies]
    for name in silent:
        click.echo(f"{name}: no reply within {timeout:g} s", err=True)
    if not replies and not names:
        click.echo(f"no worker replied within {timeout:g} s", err=True)
    if silent or not replies or any("error" in reply for reply in replies.values()):
        ctx.exit(1)


def _tell(app: Celery, command: str, names: list[str], timeout: float) -> dict[str, dict[str, Any]]:
    found: Any = app.control.broadcast(
        command,
        destination=names or None,
        reply=True,
        timeout=timeout,
        limit=len(names) or None,
    )
    return {name: reply for each in found or () for name, reply in each.items()}
