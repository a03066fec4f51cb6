"""``celery -A proj lease drain``: drains workers, or resumes them."""

from __future__ import annotations

import click

from celery_lease.cli.broker import reached
from celery_lease.cli.workers import DESTINATION, TIMEOUT, asker, report_silent, warn_of_namesakes


@click.command()
@click.option("--resume", is_flag=True, help="Take messages again.")
@DESTINATION
@TIMEOUT
@click.pass_context
def drain(ctx: click.Context, resume: bool, destination: list[str], timeout: float) -> None:
    """Stop taking messages, and finish running tasks.

    Reserved messages are requeued at once, for other workers. A drained worker stays up, and is not
    ready, until --resume or its end. celery inspect lease_state shows how many tasks still run.
    Exits with status 1 if a worker did not reply, or refused.
    """
    command = "lease_resume" if resume else "lease_drain"
    app = ctx.obj.app
    with reached(app.connection_for_write()) as connection:
        ask = asker(app, connection)
        replies = ask(command, destination, timeout, {})
    warn_of_namesakes(ask.duplicates)
    for name, reply in sorted(replies.items()):
        click.echo(f"{name}: {reply.get('ok') or reply.get('error')}")
    nodes = destination or ask.known
    names = [name for node in nodes for name in ask.duplicates.get(node, [node])]
    silent = report_silent(names, replies, timeout)
    if silent or any("error" in reply for reply in replies.values()):
        ctx.exit(1)
