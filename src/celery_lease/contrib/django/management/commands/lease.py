"""``manage.py lease ...``: the commands of ``celery lease`` with the project's app."""

from __future__ import annotations

import argparse
from typing import Any

import click
from celery.app import app_or_default
from celery.bin.base import CLIContext
from django.core.management.base import BaseCommand

from celery_lease.cli import lease


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    """Passes all arguments on to click."""

    help = "Leases of long tasks, as `celery -A APP lease`. Alone it lists its commands."
    requires_system_checks: tuple[str, ...] = ()  # the doctor says more

    def add_arguments(self, parser: Any) -> None:
        """Accept any arguments; Django's own options come before the command."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="command ...")

    def handle(self, *, arguments: list[str], no_color: bool, **_: Any) -> None:
        """Run a command, and exit with its exit code."""
        app = app_or_default()
        context: Any = CLIContext(app=app, no_color=no_color, workdir=None)
        try:
            _commands().main(args=arguments, prog_name="manage.py lease", obj=context)
        except SystemExit as exc:
            if exc.code:
                raise


def _commands() -> click.Group:
    """Return all commands except ``group``, which needs the ``-A`` of a ``celery`` command line."""
    kept = {name: each for name, each in lease.commands.items() if name != "group"}
    return click.Group("lease", kept, callback=lease.callback, help=lease.help)
