"""``celery -A proj lease drain``: have workers finish what they run and take nothing more."""

from __future__ import annotations

import click

from celery_lease.cli.broker import reached
from celery_lease.cli.workers import DESTINATION, TIMEOUT, asker, tell_silent


@click.command()
@click.option("--resume", is_flag=True, help="Take messages again.")
@DESTINATION
@TIMEOUT
@click.pass_context
def drain(ctx: click.Context, resume: bool, destination: list[str], timeout: float) -> None:
    """Let workers finish what they run and take nothing more, or let them go on.

    What they have received and not started goes back to its queue at once, for other workers. A
    drained worker stays up, and is not ready, until it is told to go on or is stopped. How far it
    is: celery inspect lease_state. Ends with 1 if a worker did not reply, or refused.
    """
    command = "lease_resume" if resume else "lease_drain"
    app = ctx.obj.app
    with reached(app.connection_for_write()) as connection:
        replies = asker(app, connection)(command, destination, timeout, {})
    for name, reply in sorted(replies.items()):
        click.echo(f"{name}: {reply.get('ok') or reply.get('error')}")
    silent = tell_silent(destination, replies, timeout)
    if silent or any("error" in reply for reply in replies.values()):
        ctx.exit(1)
