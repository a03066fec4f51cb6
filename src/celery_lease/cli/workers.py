"""Asks workers by remote control, for the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_lease import brokers
from celery_lease.cli.broker import EX_UNAVAILABLE, called, hint, reached
from celery_lease.cli.ids import expanded_by_leases
from celery_lease.core.driver import NO_BROADCASTS
from celery_lease.view import Sources
from celery_lease.view.asking import Asker, is_askable, node_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from celery import Celery

    Found = dict[str, tuple[str, Mapping[str, Any]]]  # by task

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


class CannotAsk(click.ClickException):
    """The broker carries no remote control commands."""

    exit_code = EX_UNAVAILABLE

    def __init__(self, transport: str) -> None:
        why = brokers.driver_class(transport).unaskable or NO_BROADCASTS
        super().__init__(
            f"workers on {called(transport)} cannot be reached by commands: {why}. What they "
            "hold is in their logs, metrics and health endpoints (lease_health_port); of one task "
            "see celery -A APP lease explain TASK_ID; SIGTERM makes a worker requeue what has "
            "not started"
        )


def asker(app: Celery, connection: Any) -> Asker:
    """Return an asker for an open *connection*, for any number of questions.

    Raises:
        CannotAsk: The broker carries no remote control commands.
    """
    if not is_askable(connection):
        raise CannotAsk(connection.transport.driver_type)
    return Asker(app, connection)


def replies_about(
    ctx: click.Context,
    tasks: Sequence[str],
    timeout: float,
    command: str,
    arguments: Callable[[list[str]], dict[str, Any]],
) -> tuple[list[str], Mapping[str, Any]]:
    """Send all workers a command about tasks; exit with status 69 if none replies.

    Args:
        ctx: The context of the click command.
        tasks: Ids of tasks, or their unique beginnings.
        timeout: Seconds for the replies.
        command: The remote control command.
        arguments: Makes its arguments of the whole ids.

    Returns:
        The whole ids, and the replies by worker.
    """
    app = ctx.obj.app
    with reached(app.connection_for_write()) as connection:
        ask = asker(app, connection)
        ids = expanded_by_leases(tasks, Sources(ask=ask), timeout)
        replies = ask(command, [], timeout, arguments(ids))
    if report_silent([], replies, timeout):
        ctx.exit(EX_UNAVAILABLE)
    warn_of_namesakes(ask.duplicates)
    return ids, replies


def best_answers(replies: Mapping[str, Any], states: Iterable[str]) -> Found:
    """Return for each task that a worker knows the worker whose answer counts, and that answer.

    Args:
        replies: By worker; those of ``lease_cancel`` and ``lease_hand_over``.
        states: The states that count, the one that counts most first.
    """
    ranks = list(states)
    found: Found = {}
    for name, reply in replies.items():
        for task_id, what in (reply.get("tasks") or {}).items():
            if what["state"] in ranks and (
                task_id not in found
                or ranks.index(what["state"]) < ranks.index(found[task_id][1]["state"])
            ):
                found[task_id] = name, what
    return found


def report_silent(names: Sequence[str], replies: Iterable[str], timeout: float) -> bool:
    """Report on stderr the workers that did not answer; return whether there are any.

    They are named by their nodes, or by their identities where several share a name.
    """
    labels = list(replies)
    replied = {*labels, *map(node_of, labels)}
    silent = [name for name in names if name not in replied]
    for name in silent:
        click.echo(f"{name}: no reply within {timeout:g} s", err=True)
    if not names and not replied:
        click.echo(
            f"no worker with leases replied within {timeout:g} s. Is one running on this broker, "
            "with worker_enable_remote_control? One that is busy may need more time: --timeout."
            f"{hint()}",
            err=True,
        )
    return bool(silent) or not replied


def warn_of_namesakes(duplicates: Mapping[str, Sequence[str]]) -> None:
    """Report on stderr the workers that share a node name."""
    for node, who in sorted(duplicates.items()):
        click.echo(
            f"warning: {len(who)} workers are named {node}: {', '.join(sorted(who))}. Commands "
            "reach all of them, and monitors take them for one. Give each a name of its own: "
            "celery worker -n NAME@%h",
            err=True,
        )
