"""``celery -A proj lease explain``: where one task is, how it came there, what happens next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_lease import brokers, settings
from celery_lease.cli import rows
from celery_lease.cli.broker import reached
from celery_lease.cli.dead import likely
from celery_lease.cli.results import result_of
from celery_lease.cli.story import Facts, tell
from celery_lease.cli.workers import TIMEOUT, asker, is_askable
from celery_lease.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery

    from celery_lease.core.delivery import Driver


@click.command()
@click.argument("task_id")
@click.option(
    "-q",
    "--queue",
    "queues",
    multiple=True,
    help="A queue to look into beside those of task_queues; may be repeated.",
)
@TIMEOUT
@click.pass_context
def explain(ctx: click.Context, task_id: str, queues: tuple[str, ...], timeout: float) -> None:
    """Explain a task: who holds it, since when, its last beat, why it was lost, what comes next.

    It asks the workers, the broker where that keeps a record, and the result backend. Ends with 1
    if nobody knows the task.
    """
    app = ctx.obj.app
    facts = Facts(task_id=task_id, **_of_app(app), **_from_workers(app, task_id, timeout))
    with reached(app.connection_for_read()) as connection:
        told = _from_broker(app, connection, task_id, queues)
    told["result"] = result_of(app, task_id)
    facts = _with(facts, told)
    for line in tell(facts, SystemClock().wall().timestamp()):
        click.echo(line)
    if not facts.is_known:
        ctx.exit(1)


def _with(facts: Facts, more: dict[str, Any]) -> Facts:
    kept = {name: getattr(facts, name) for name in Facts.__slots__}
    return Facts(**{**kept, **more})


def _of_app(app: Celery) -> dict[str, Any]:
    try:
        loaded = settings.load(app.conf)
    except settings.LeaseConfigError as exc:
        raise click.ClickException(str(exc)) from exc
    return {
        "reaper_interval": loaded.reaper_interval,
        "max_deliveries": loaded.policy.max_deliveries,
        "dead_letter_queue": loaded.dead_letter_queue,
    }


def _from_workers(app: Celery, task_id: str, timeout: float) -> dict[str, Any]:
    with reached(app.connection_for_write()) as connection:
        if not is_askable(connection):
            return {"replied": 0, "askable": False}
        ask = asker(app, connection)
        replies = ask("leases", [], timeout, {"task_id": [task_id]})
        held = rows.listed(replies)
        waits = [row["hostname"] for row in held if row["started_at"] is None]
        eta = _eta(ask("scheduled", waits, timeout, {}), task_id) if waits else None
    return {"replied": len(replies), "held": held, "eta": eta}


def _eta(replies: dict[str, Any], task_id: str) -> str | None:
    """Return until when a task waits, by Celery's own list of what is scheduled."""
    for scheduled in replies.values():
        for each in scheduled if isinstance(scheduled, list) else ():
            if each["request"]["id"] == task_id:
                return str(each["eta"])
    return None


def _from_broker(
    app: Celery, connection: Any, task_id: str, queues: Sequence[str]
) -> dict[str, Any]:
    transport = str(connection.transport.driver_type)
    if transport not in brokers.DRIVERS:
        return {"broker": transport}
    driver = brokers.driver(connection.default_channel)
    try:
        able = driver.capabilities
        told: dict[str, Any] = {"broker": transport, "reaps": able.reaps, "records": able.records}
        if not able.buries:
            told["dead_letter_queue"] = ""
        else:
            told |= {"searched": True, "dead": _dead(app, driver, task_id)}
        if able.records:
            names = [*dict.fromkeys([*app.amqp.queues, *queues])]
            told |= _on_record(driver, task_id, names)
        return told
    finally:
        driver.close()


def _dead(app: Celery, driver: Driver, task_id: str) -> list[Any]:
    letters = driver.dead_letters()
    return [
        letter
        for queue in letters.queues(likely(app))
        for letter in letters.letters(queue)
        if letter.task_id == task_id
    ]


def _on_record(driver: Driver, task_id: str, queues: Sequence[str]) -> dict[str, Any]:
    records = driver.records()
    leases = list(records.leases(task_id))
    waiting = None if leases else records.waiting(task_id, queues)
    tags = [lease.tag for lease in leases] + ([waiting.tag] if waiting else [])
    losses = [loss for tag in tags for loss in records.losses(tag)]
    return {"recorded": leases, "waiting": waiting, "losses": losses}
