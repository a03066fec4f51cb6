"""Asking workers by remote control, for the commands that look at leases or end tasks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from celery_lease.cli.broker import EX_UNAVAILABLE, called
from celery_lease.worker.control import WHO  # and ``celery inspect leases`` knows it by this

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery import Celery

__all__ = [
    "DESTINATION",
    "EX_UNAVAILABLE",
    "TIMEOUT",
    "WITHOUT_REMOTE_CONTROL",
    "CannotAsk",
    "asker",
    "is_askable",
    "replies_to",
    "tell_silent",
]

NO_BROADCASTS = "Celery's remote control needs broadcasts, which kombu does not have there"
#: Brokers on which no worker can be asked, by kombu's names, and why. On SQS a try leaves a queue.
#: On pgmq, kombu 5.7.0 names its reply queue longer than pgmq 1.13 allows, calls a send_topic that
#: pgmq does not have, and binds reply queues only within a process.
WITHOUT_REMOTE_CONTROL = {
    "sqs": NO_BROADCASTS,
    "pgmq": "the names and calls of Celery's remote control are none that pgmq takes",
}
#: How the names of the commands of :mod:`celery_lease.worker.control` begin, which plain Celery
#: does not know.
OURS = "lease"

#: Seconds that a question goes on at the server after its end.
LEFT_BEHIND = 0.05

DESTINATION = click.option(
    "-d",
    "--destination",
    metavar="NODES",
    default="",
    callback=lambda _ctx, _param, text: [name for name in text.split(",") if name],
    help="Names of workers, with commas between them; all of them if left out.",
)
TIMEOUT = click.option(
    "-t",
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="Seconds to wait for the workers' replies.",
)


def replies_to(
    app: Celery,
    command: str,
    names: Sequence[str] = (),
    *,
    timeout: float,
    arguments: dict[str, Any] | None = None,
    connection: Any = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Return the workers' replies by their names; those named, or all that answer in time.

    It waits for no more than *limit* of them, or than are named.
    """
    replies: Any = app.control.broadcast(
        command,
        arguments=arguments,
        destination=list(names) or None,
        connection=connection,
        reply=True,
        timeout=timeout,
        limit=limit or len(names) or None,
    )
    return {name: reply for each in replies or () for name, reply in each.items()}


class CannotAsk(click.ClickException):
    """The broker carries no remote control commands."""

    exit_code = EX_UNAVAILABLE

    def __init__(self, transport: str) -> None:
        why = WITHOUT_REMOTE_CONTROL.get(transport, NO_BROADCASTS)
        super().__init__(
            f"workers on {called(transport)} cannot be asked or told anything: {why}. What they "
            "hold is in their logs, metrics and health endpoints (lease_health_port); of one task "
            "see celery -A APP lease explain TASK_ID; SIGTERM has a worker hand back what has "
            "not begun"
        )


def is_askable(connection: Any) -> bool:
    """Whether remote control commands reach workers on a *connection*'s broker."""
    silent = connection.transport.driver_type in WITHOUT_REMOTE_CONTROL
    return not silent and bool(connection.supports_exchange_type("fanout"))


def asker(
    app: Celery, connection: Any
) -> Callable[[str, Sequence[str], float, dict[str, Any]], dict[str, Any]]:
    """Return what asks workers by an open *connection*, again and again.

    A command of leases goes to no worker that does not know it, unless it is named: a plain Celery
    worker would write a traceback to its log.

    Raises:
        CannotAsk: The broker carries no remote control commands.
    """
    if not is_askable(connection):
        raise CannotAsk(connection.transport.driver_type)
    channel = connection.default_channel
    if hasattr(channel, "brpop_timeout"):
        # Redis: a question that took all of its time leaves a request for more replies behind, and
        # until that is answered kombu reads no reply to the next one.
        channel.brpop_timeout = LEFT_BEHIND

    def asked(
        command: str, names: Sequence[str], timeout: float, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        ask = partial(replies_to, app, timeout=timeout, connection=connection)
        if names or not command.startswith(OURS):
            return ask(command, names, arguments=arguments)
        stats = ask("stats", arguments=WHO)
        leased = [name for name, each in stats.items() if "lease" in each]
        if not leased:
            return {}
        # One that is too busy to say what it is hears of it too, where that can do no harm.
        names = leased if len(leased) < len(stats) else ()
        return ask(command, names, arguments=arguments, limit=len(leased))

    return asked


def tell_silent(names: Sequence[str], replies: dict[str, Any], timeout: float) -> bool:
    """Say on stderr which workers did not answer; return whether there are any."""
    silent = [name for name in names if name not in replies]
    for name in silent:
        click.echo(f"{name}: no reply within {timeout:g} s", err=True)
    if not names and not replies:
        click.echo(
            f"no worker with leases replied within {timeout:g} s. Is one running on this broker, "
            "with worker_enable_remote_control? One that is busy may need more time: --timeout",
            err=True,
        )
    return bool(silent) or not replies
