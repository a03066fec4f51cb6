"""``celery -A proj lease explain``: the state of one task, its past, and its next step."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from celery_lease import settings
from celery_lease.cli.broker import driver_at, loaded_of, reached
from celery_lease.cli.dead import facts as letter_facts, letters_of, likely, loss as loss_facts
from celery_lease.cli.exclusive import waits_for
from celery_lease.cli.ids import WHOLE, expanded_by_leases
from celery_lease.cli.results import result_of
from celery_lease.cli.sources import optional_sources, reap_within
from celery_lease.cli.story import Facts, story_of
from celery_lease.cli.workers import TIMEOUT, warn_of_namesakes
from celery_lease.core.clock import SystemClock
from celery_lease.core.secrets import masked
from celery_lease.view import LeaseRow, Sources, View, view_of
from celery_lease.view.row import ON_RECORD

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery import Celery

    from celery_lease.core.dead import DeadLetter
    from celery_lease.core.driver import Driver
    from celery_lease.task.checkpoints.looking import Saved


@click.command()
@click.argument("task_id")
@click.option(
    "-q",
    "--queue",
    "queues",
    multiple=True,
    help="A queue to look into beside those of task_queues; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of sentences.")
@TIMEOUT
@click.pass_context
def explain(
    ctx: click.Context, task_id: str, queues: tuple[str, ...], as_json: bool, timeout: float
) -> None:
    """Show where a task is, and what happens next.

    The answer comes from the workers, the broker's records and the result backend: the holder, the
    last beat, the losses, the checkpoint, the result. Exits with status 1 if none of them knows the
    task.
    """
    app = ctx.obj.app
    with optional_sources(app) as found:
        (task_id,) = expanded_by_leases([task_id], found, timeout, _other_ids(app, task_id))
        view = view_of(found, timeout, [task_id])
        warn_of_namesakes(view.duplicates)
        leases = leases_of(view, task_id, askable=found.ask is not None)
        leases["eta"] = eta_of(found, leases["held"], timeout)
    facts, now = facts_of(app, task_id, leases, queues), SystemClock().wall().timestamp()
    if as_json:
        click.echo(json.dumps(document(facts, now), indent=2, ensure_ascii=False))
    else:
        click.echo("\n".join(story_of(facts, now)))
    if not facts.is_known:
        ctx.exit(1)


def leases_of(view: View, task_id: str, *, askable: bool) -> dict[str, Any]:
    """Return a view's leases of a task."""
    rows = [row for row in view.rows if row.id == task_id]
    return {
        "replied": len(view.workers),
        "askable": askable,
        "held": [row for row in rows if row.state not in ON_RECORD],
        "recorded": [row for row in rows if row.state in ON_RECORD],
    }


def awaited_key(view: View, task_id: str) -> str | None:
    """Return the key for which a task's message waits by a view of all tasks.

    "": for none; None: unknown.
    """
    keys = [row.key for row in view.parked if row.id == task_id]
    if keys:
        return keys[0]
    is_held = any(row.id == task_id for row in view.rows)
    return "" if is_held and len(view.parked) >= view.parked_count else None


def facts_of(
    app: Celery,
    task_id: str,
    leases: dict[str, Any],
    queues: Sequence[str] = (),
    awaited: str | None = None,
) -> Facts:
    """Return all facts about a task.

    Args:
        app: The app whose broker and result backend are asked.
        task_id: The task.
        leases: The result of :func:`leases_of`.
        queues: Further queues to search.
        awaited: The result of :func:`awaited_key`.
    """
    known = _of_app(app) | leases
    with reached(app.connection_for_read()) as connection:
        known |= _from_broker(app, connection, task_id, queues, known, awaited=awaited)
    known["result"] = result_of(app, task_id)
    known |= _checkpoint(app, task_id)
    return Facts(task_id=task_id, **(known | _in_force(app, known)))


def facts_in_view(app: Celery, view: View, askable: bool, task_id: str, timeout: float) -> Facts:
    """Return all facts about a task; its leases come from a view of all tasks."""
    known = leases_of(view, task_id, askable=askable)
    if any(row.started_at is None for row in known["held"]):
        with optional_sources(app) as found:
            known["eta"] = eta_of(found, known["held"], timeout)
    return facts_of(app, task_id, known, (), awaited_key(view, task_id))


def document(facts: Facts, now: float) -> dict[str, Any]:
    """Return the facts about a task as a JSON document; *now* is seconds since 1970."""
    return {
        "task_id": facts.task_id,
        "known": facts.is_known,
        "told": list(story_of(facts, now)),
        "leases": [asdict(row) for row in (*facts.held, *facts.recorded)],
        "losses": [loss_facts(each) for each in facts.losses],
        "waiting": facts.waiting and asdict(facts.waiting),
        "parked": facts.parked and asdict(facts.parked),
        "dead": [letter_facts(letter) for letter in facts.dead],
        "checkpoint": facts.checkpoint and _without_value(facts.checkpoint),
        "result": facts.result and asdict(facts.result),
    }


def _without_value(kept: Saved) -> dict[str, Any]:
    return {name: value for name, value in asdict(kept).items() if name != "value"}


def _of_app(app: Celery) -> dict[str, Any]:
    loaded = loaded_of(app)
    return {
        "reaper_interval": reap_within(app),
        "max_deliveries": loaded.policy.max_deliveries,
        "dead_letter_queue": loaded.dead_letter_queue,
    }


def _in_force(app: Celery, known: dict[str, Any]) -> dict[str, Any]:
    """Return the task's own limit of deliveries, if no worker reported it."""
    from celery_lease.worker.policies import Policies  # noqa: PLC0415  (every command imports this)

    names = [row.task for row in known["recorded"]]
    names += [known["waiting"].task] if known.get("waiting") else []
    policy = Policies(app, settings.load(app.conf))(names[0], {}) if names else None
    return {"max_deliveries": policy.max_deliveries} if policy else {}


def eta_of(found: Sources, held: Sequence[LeaseRow], timeout: float) -> str | None:
    """Return the time until which a task waits, from Celery's own list of scheduled tasks."""
    waits = sorted({row.hostname for row in held if row.started_at is None})
    if not waits or found.ask is None:
        return None
    ids = {row.id for row in held}
    for scheduled in found.ask("scheduled", waits, timeout, {}).values():
        for each in scheduled if isinstance(scheduled, list) else ():
            if each["request"]["id"] in ids:
                return str(each["eta"])
    return None


def _from_broker(
    app: Celery,
    connection: Any,
    task_id: str,
    queues: Sequence[str],
    known: dict[str, Any],
    *,
    awaited: str | None,
) -> dict[str, Any]:
    more: dict[str, Any] = {"broker": str(connection.transport.driver_type)}
    with driver_at(connection) as driver:
        if driver is None:
            return more
        able = driver.capabilities
        more |= {"reaps": able.reaps, "records": able.records}
        if not able.dead_letters:
            more["dead_letter_queue"] = ""
        else:
            found = [each for each in _dead(app, driver) if each.task_id == task_id]
            more |= {"searched": True, "dead": found}
        if able.keys:
            more["parked"] = waits_for(driver, task_id, awaited)
        if able.records:
            tags = [row.tag for row in (*known["held"], *known["recorded"])]
            names = [*dict.fromkeys([*app.amqp.queues, *queues])]
            more |= _on_record(driver, task_id, names, tags)
        return more


def _checkpoint(app: Celery, task_id: str) -> dict[str, Any]:
    """Return a task's checkpoint, or why it could not be read."""
    from celery_lease.task.checkpoints.looking import look  # noqa: PLC0415  (as above)

    try:
        return {"checkpoint": look(app, task_id)}
    except Exception as exc:  # noqa: BLE001  (as many kinds as there are client libraries)
        return {"unread": " ".join(f"{type(exc).__name__}: {masked(exc)}".split())}


def _other_ids(app: Celery, text: str) -> list[str]:
    """Return the ids of dead letters and parked messages, to complete a shortened id."""
    if len(text) >= WHOLE:
        return []
    ids: list[str] = []
    with reached(app.connection_for_read()) as connection, driver_at(connection) as driver:
        if driver and driver.capabilities.keys:
            ids += [each.task_id for use in driver.keys_in_use() for each in use.parked]
        if driver and driver.capabilities.dead_letters:
            ids += [letter.task_id for letter in _dead(app, driver)]
    return ids


def _dead(app: Celery, driver: Driver) -> Iterator[DeadLetter]:
    letters = driver.dead_letters()
    return letters_of(letters, letters.queues(likely(app)))


def _on_record(
    driver: Driver, task_id: str, queues: Sequence[str], tags: Sequence[str]
) -> dict[str, Any]:
    records = driver.records()
    waiting = None if tags else records.waiting(task_id, queues)
    every = [*tags, *([waiting.tag] if waiting and waiting.tag else [])]
    return {"waiting": waiting, "losses": [loss for tag in every for loss in records.losses(tag)]}
