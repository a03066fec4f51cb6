"""Serves the page as a process of its own: ``celery -A proj lease web``."""

from __future__ import annotations

import logging
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import click
import uvicorn

from celery_lease.web.access import hashed
from celery_lease.web.app import create_app
from celery_lease.web.guard import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery import Celery

#: Seconds that open pages have to end when it stops.
STOP_TIMEOUT = 2


def credentials(user: str, password: str) -> str:
    """Return the value of ``--auth`` for a user.

    Raises:
        click.UsageError: The name is unusable.
    """
    if ":" in user or not user.isprintable():
        raise click.UsageError("a user's name has no colon and no control characters")
    return f"{user}:{hashed(password)}"


def serve(
    app: Celery,
    *,
    host: str,
    port: int,
    hosts: Iterable[str],
    no_auth: bool,
    root_path: str,
    **options: Any,
) -> None:
    """Serve an app's page until a signal ends it.

    Raises:
        click.ClickException: It would be open to all, or the address is in use.
    """
    open_to_all = not is_loopback(host)
    names = [*hosts, *(_names_of(host) if open_to_all else ())]
    asks = bool(options["auth"] or options["auth_token"])
    if open_to_all and not asks and not no_auth:
        raise click.UsageError(
            f"on {host} others can reach the page, and cancel tasks: say who may, by --auth or "
            "--auth-token (celery -A APP lease web --make-auth USER), or --no-auth if anybody may"
        )
    try:
        page = create_app(app, hosts=names, no_auth=no_auth, **options)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    _log()
    with _listening(host, port) as listener:
        address = listener.getsockname()
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        click.echo(f"leases of {app.main or 'app'}: http://{shown}:{address[1]}{root_path}/")
        if no_auth and open_to_all:
            click.echo("warning: --no-auth lets anybody in who reaches this address", err=True)
        config = uvicorn.Config(
            page,
            root_path=root_path,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_TIMEOUT,
        )
        uvicorn.Server(config).run(sockets=[listener])


def is_loopback(host: str) -> bool:
    """Whether only this host can reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in LOOPBACK


def _names_of(host: str) -> list[str]:
    """Return the names by which browsers on other hosts may know this host."""
    return list({host, socket.gethostname(), socket.getfqdn()} - {"", "0.0.0.0", "::"})  # noqa: S104


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as exc:
        raise click.ClickException(
            f"cannot listen on {host} port {port}: {exc.strerror or exc}. Give another --port"
        ) from exc


def _log() -> None:
    """Set up logging, which shows each write; Celery's own commands set up none."""
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
