"""Asking workers by remote control, for the commands that look at leases or end tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import celery_lease.worker.control  # noqa: F401  (``celery inspect leases`` knows it by this)
from celery_lease.cli.broker import EX_UNAVAILABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery import Celery

__all__ = ["DESTINATION", "EX_UNAVAILABLE", "TIMEOUT", "asker", "replies_to", "tell_silent"]

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
) -> dict[str, Any]:
    """Return the workers' replies by their names; those named, or all that answer in time."""
    replies: Any = app.control.broadcast(
        command,
        arguments=arguments,
        destination=list(names) or None,
        connection=connection,
        reply=True,
        timeout=timeout,
        limit=len(names) or None,
    )
    return {name: reply for each in replies or () for name, reply in each.items()}


def asker(
    app: Celery, connection: Any
) -> Callable[[str, Sequence[str], float, dict[str, Any]], dict[str, Any]]:
    """Return what asks workers by an open *connection*, again and again.

    Raises:
        click.ClickException: The broker carries no remote control commands.
    """
    if not connection.supports_exchange_type("fanout"):
        raise click.ClickException(
            f"{connection.transport.driver_type} carries no remote control commands, so workers "
            "cannot be asked: see their logs and health endpoints"
        )

    def asked(
        command: str, names: Sequence[str], timeout: float, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        return replies_to(
            app, command, names, timeout=timeout, arguments=arguments, connection=connection
        )

    return asked


def tell_silent(names: Sequence[str], replies: dict[str, Any], timeout: float) -> bool:
    """Say on stderr which workers did not answer; return whether there are any."""
    silent = [name for name in names if name not in replies]
    for name in silent:
        click.echo(f"{name}: no reply within {timeout:g} s", err=True)
    if not names and not replies:
        click.echo(
            f"no worker replied within {timeout:g} s. Is one running on this broker, with "
            "worker_enable_remote_control? One that is busy may need more time: --timeout",
            err=True,
        )
    return bool(silent) or not replies
