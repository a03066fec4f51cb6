"""``celery -A proj lease web``: serves a page with all leases.

The page is an extra, and is imported when it is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

#: The packages of the extra ``web``.
PARTS = ("jinja2", "sse_starlette", "starlette", "uvicorn")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=5556, show_default=True)
@click.option(
    "--auth",
    metavar="USER:HASH",
    envvar="CELERY_LEASE_WEB_AUTH",
    show_envvar=True,
    help="Ask for a user's password. --make-auth makes the hash.",
)
@click.option(
    "--auth-token",
    metavar="TOKEN",
    envvar="CELERY_LEASE_WEB_TOKEN",
    show_envvar=True,
    help="Ask for a token, as Authorization: Bearer, or as the password of any user.",
)
@click.option("--no-auth", is_flag=True, help="Serve anybody who reaches --host.")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name under which the page is reached, as behind a proxy; may be repeated.",
)
@click.option(
    "--root-path", default="", metavar="PATH", help="The path prefix that a proxy removes."
)
@click.option(
    "--read-only", is_flag=True, help="Serve no buttons, and no routes that change anything."
)
@click.option("--show-args", is_flag=True, help="Show the arguments of tasks.")
@click.option(
    "--events", is_flag=True, help="Let the workers send task events while the page is open."
)
@click.option(
    "--make-auth", metavar="USER", help="Ask for a password, print what --auth takes, and end."
)
@click.pass_context
def web(ctx: click.Context, /, make_auth: str | None, **asked: Any) -> None:
    """Serve a web page with all leases.

    A --host other than this one's loopback address needs --auth, --auth-token or --no-auth.
    """
    try:
        serve: Any = import_module("celery_lease.web.serve")
    except ModuleNotFoundError as exc:
        if exc.name in PARTS:
            raise click.ClickException(
                f"{exc.name} is not installed: pip install 'celery-lease[web]'"
            ) from exc
        raise
    if make_auth:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        click.echo(serve.credentials(make_auth, password))
        return
    serve.serve(ctx.obj.app, **asked)
