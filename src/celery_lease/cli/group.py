"""``celery -A proj lease group``: runs several workers as one process."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import click
from click.core import ParameterSource

from celery_lease import brokers
from celery_lease.cli.broker import loaded_of
from celery_lease.group import MARGIN, Member
from celery_lease.group.__main__ import arguments_for

if TYPE_CHECKING:
    from collections.abc import Iterator

SYNTAX = "NAME[:PRIORITY]=ARGUMENTS"
WORKER = re.compile(r"(?P<name>[\w.-]+)(:(?P<priority>-?\d+))?=(?P<arguments>.*)", re.DOTALL)


def _workers(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> list[Member]:
    workers = [_worker(text) for text in texts]
    names = [worker.name for worker in workers]
    if len(set(names)) < len(names):
        raise click.BadParameter(f"every worker needs a name of its own, not {', '.join(names)}")
    return workers


def _worker(text: str) -> Member:
    """Return the value of one ``-w``; its command is only the arguments for ``celery worker``."""
    found = WORKER.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not {SYNTAX}, such as 'video:10=-Q video -c 2'")
    try:
        arguments = tuple(shlex.split(found["arguments"]))
    except ValueError as exc:
        raise click.BadParameter(f"{text!r}: {exc}") from exc
    if {"-D", "--detach"}.intersection(arguments):
        raise click.BadParameter(f"{text!r}: a worker of a group stays in the foreground")
    return Member(name=found["name"], priority=int(found["priority"] or 0), command=arguments)


@click.command()
@click.option(
    "-w",
    "--worker",
    "workers",
    metavar=SYNTAX,
    callback=_workers,
    multiple=True,
    required=True,
    help="A worker and its options; give one -w for each. Lower priorities (default 0) are "
    "stopped first.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    show_default=f"lease_shutdown_timeout, or the longest poll, + {MARGIN:g}",
    help="Seconds that the workers of one priority have to stop, before they are forced to.",
)
@click.pass_context
def group(ctx: click.Context, workers: list[Member], timeout: float | None) -> NoReturn:
    """Run several workers under one parent, as in one container.

    celery -A proj lease group -w 'video:10=-Q video' -w 'mail:20=-Q mail -c 8'

    The parent passes signals on, stops workers in the order of their priority, restarts none,
    stops all when one ends, and exits with the worst exit code. Each worker is the node NAME@host.
    """
    if timeout is None:
        # A poll that is broken off would bring messages that no worker receives.
        connection = ctx.obj.app.connection_for_read()  # never opened
        poll = brokers.driver_class(connection.transport.driver_type).longest_poll(connection)
        timeout = max(loaded_of(ctx.obj.app).policy.shutdown_timeout, poll) + MARGIN
    celery = tuple(_celery(ctx))
    members = [
        replace(each, command=(*celery, "worker", "-n", f"{each.name}@%h", *each.command))
        for each in workers
    ]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(  # noqa: S606  (the command becomes the parent)
        sys.executable,
        [sys.executable, "-m", "celery_lease.group", *arguments_for(members, timeout)],
    )


def _celery(ctx: click.Context) -> Iterator[str]:
    """Yield the command line of ``celery`` with the global options of this call.

    All other options reach the workers by the environment and the working directory, where Celery
    itself puts them.
    """
    root = ctx.find_root()
    yield from (sys.executable, "-m", "celery")
    if root.get_parameter_source("app") is ParameterSource.COMMANDLINE:
        yield from ("-A", root.params["app"])
    if ctx.obj.no_color:
        yield "--no-color"
    if ctx.obj.quiet:
        yield "--quiet"
