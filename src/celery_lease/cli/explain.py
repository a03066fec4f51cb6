"""``celery -A proj lease explain``: the state of one task, its past, and its next step."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

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
    from celery_lease.settings import Settings
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
        facts = _in_view(view, task_id, askable=found.ask is not None)
        facts.eta = eta_of(found, facts.held, timeout)
    _complete(facts, app, queues)
    now = SystemClock().wall().timestamp()
    if as_json:
        click.echo(json.dumps(document(facts, now), indent=2, ensure_ascii=False))
    else:
        click.echo("\n".join(story_of(facts, now)))
    if not facts.is_known:
        ctx.exit(1)


def _in_view(view: View, task_id: str, *, askable: bool) -> Facts:
    """Return what a view has of a task: its leases."""
    rows = [row for row in view.rows if row.id == task_id]
    return Facts(
        task_id=task_id,
        replied=len(view.workers),
        askable=askable,
        held=[row for row in rows if row.state not in ON_RECORD],
        recorded=[row for row in rows if row.state in ON_RECORD],
    )


def awaited_key(view: View, task_id: str) -> str | None:
    """Return the key for which a task's message waits by a view of all tasks.

    "": for none; None: unknown.
    """
    keys = [row.key for row in view.parked if row.id == task_id]
    if keys:
        return keys[0]
    is_held = any(row.id == task_id for row in view.rows)
    return "" if is_held and len(view.parked) >= view.parked_count else None


def _complete(
    facts: Facts, app: Celery, queues: Sequence[str] = (), awaited: str | None = None
) -> None:
    """Add what the app, the broker and the result backend know of a task.

    Args:
        facts: The task, with its leases.
        app: The app whose broker and result backend are asked.
        queues: Further queues to search.
        awaited: The result of :func:`awaited_key`.
    """
    facts.reaper_interval = reap_within(app)
    loaded = loaded_of(app)
    facts.max_deliveries = loaded.policy.max_deliveries
    facts.dead_letter_queue = loaded.dead_letter_queue
    with reached(app.connection_for_read()) as connection, driver_at(connection) as driver:
        facts.broker = str(connection.transport.driver_type)
        if driver is not None:
            _ask_broker(facts, app, driver, queues, awaited)
    facts.result = result_of(app, facts.task_id)
    _read_checkpoint(facts, app)
    _find_limit(facts, app, loaded)


def facts_in_view(app: Celery, view: View, askable: bool, task_id: str, timeout: float) -> Facts:
    """Return all facts about a task; its leases come from a view of all tasks."""
    facts = _in_view(view, task_id, askable=askable)
    if any(row.started_at is None for row in facts.held):
        with optional_sources(app) as found:
            facts.eta = eta_of(found, facts.held, timeout)
    _complete(facts, app, awaited=awaited_key(view, task_id))
    return facts


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


def _find_limit(facts: Facts, app: Celery, loaded: Settings) -> None:
    """Find the task's own limit of deliveries, if no worker reported it."""
    from celery_lease.worker.policies import Policies  # noqa: PLC0415  (every command imports this)

    names = [each.task for each in (*facts.recorded, facts.waiting) if each]
    if names and (policy := Policies(app, loaded)(names[0], {})):
        facts.max_deliveries = policy.max_deliveries


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


def _ask_broker(
    facts: Facts, app: Celery, driver: Driver, queues: Sequence[str], awaited: str | None
) -> None:
    able = driver.capabilities
    facts.reaps, facts.records = able.reaps, able.records
    if able.dead_letters:
        facts.searched = True
        facts.dead = [each for each in _dead(app, driver) if each.task_id == facts.task_id]
    else:
        facts.dead_letter_queue = ""
    if able.keys:
        facts.parked = waits_for(driver, facts.task_id, awaited)
    if able.records:
        records = driver.records()
        tags = [row.tag for row in (*facts.held, *facts.recorded)]
        if not tags:
            names = [*dict.fromkeys([*app.amqp.queues, *queues])]
            facts.waiting = records.waiting(facts.task_id, names)
            tags = [facts.waiting.tag] if facts.waiting and facts.waiting.tag else []
        facts.losses = [loss for tag in tags for loss in records.losses(tag)]


def _read_checkpoint(facts: Facts, app: Celery) -> None:
    from celery_lease.task.checkpoints.looking import look  # noqa: PLC0415  (as above)

    try:
        facts.checkpoint = look(app, facts.task_id)
    except Exception as exc:  # noqa: BLE001  (as many kinds as there are client libraries)
        facts.unread = " ".join(f"{type(exc).__name__}: {masked(exc)}".split())


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
