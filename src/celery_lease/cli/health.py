"""``celery -A proj lease health``: asks a worker on this host for its health."""

from __future__ import annotations

import click

from celery_lease import probe
from celery_lease.cli.broker import loaded_of


@click.command()
@click.option("--ready", "what", flag_value=probe.READY, default=probe.READY, help="The default.")
@click.option(
    "--live", "what", flag_value=probe.LIVE, help="Check only whether the worker needs a restart."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    show_default="lease_health_port",
    help="The worker's port; with it, no app (-A) is needed.",
)
@click.option("--host", show_default="lease_health_host", help="Where the worker listens.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=probe.TIMEOUT, show_default=True)
@click.pass_context
def health(
    ctx: click.Context, what: str, port: int | None, host: str | None, timeout: float
) -> None:
    """Ask a worker of this host for its health.

    Exits with status 0 if the worker is healthy, else with 1. For the probes of an orchestrator use
    python -m celery_lease.probe, which starts much faster.
    """
    if port is None:
        port, host = _of_app(ctx, host)
    code, line = probe.report(what, port=port, host=host or probe.HOST, timeout=timeout)
    click.echo(line)
    ctx.exit(code)


def _of_app(ctx: click.Context, host: str | None) -> tuple[int, str]:
    """Return the port and address on which the app's workers listen."""
    loaded = loaded_of(ctx.obj.app)
    if loaded.health_port is None:
        raise click.UsageError("this app sets no lease_health_port: say --port")
    listens = probe.HOST if loaded.health_host in ("0.0.0.0", "::") else loaded.health_host  # noqa: S104
    return loaded.health_port, host or listens
