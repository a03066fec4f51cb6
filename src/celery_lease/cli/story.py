"""Tells the story of one task in sentences: its past, its state, and its next step.

No I/O: all facts, and the missing ones, are in :class:`Facts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery_lease import brokers
from celery_lease.cli.broker import called
from celery_lease.cli.ids import WHOLE
from celery_lease.cli.results import Result, seconds_of
from celery_lease.cli.rows import amount, span
from celery_lease.core.dead import DEAD_AGAIN, DeadLetter, reason_of
from celery_lease.core.words import counted
from celery_lease.view.asking import node_of
from celery_lease.view.row import ORPHANED, RESTING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery_lease.core.keys import Parked
    from celery_lease.core.records import Waiting
    from celery_lease.task.checkpoints.looking import Saved
    from celery_lease.view import LeaseRow


@dataclass(slots=True, kw_only=True)
class Facts:
    """All facts about one task."""

    task_id: str
    replied: int  #: number of workers that replied
    askable: bool = True  #: workers can be asked on this broker
    held: Sequence[LeaseRow] = ()  #: their leases of the task
    eta: str | None = None  #: the time until which a worker keeps it waiting
    recorded: Sequence[LeaseRow] = ()  #: leases in the broker's records whose holders did not reply
    losses: Sequence[Mapping[str, Any]] = ()  #: deliveries that were lost
    waiting: Waiting | None = None
    parked: Parked | None = None  #: it waits at the broker for its exclusive key
    dead: Sequence[DeadLetter] = ()
    searched: bool = False  #: its dead-letter queues were searched
    result: Result | None = None  #: None: the result backend did not answer
    checkpoint: Saved | None = None  #: what the next run begins with
    unread: str = ""  #: why its checkpoint could not be read
    broker: str = ""  #: its transport
    records: bool = False  #: the broker has records that can be read without a worker
    reaps: bool = False  #: a worker's reaper returns expired messages, not the broker
    reaper_interval: float = 10.0
    max_deliveries: int = 5  #: of the task, if no worker reported it
    dead_letter_queue: str = ""  #: the queue for a message lost too often; "": the broker's rule

    @property
    def is_known(self) -> bool:
        found = (self.held, self.recorded, self.waiting, self.parked, self.dead)
        return any(found) or (self.result is not None and self.result.state != "PENDING")


def story_of(facts: Facts, now: float) -> Iterator[str]:
    """Yield the story of a task, line by line; *now* is seconds since 1970."""
    yield from _earlier(facts)
    if facts.held:
        for row in facts.held:
            yield from _held(facts, row, now)
    elif facts.recorded:
        for lease in facts.recorded:
            yield from _recorded(facts, lease, now)
    for letter in facts.dead:
        yield (
            f"{_named(letter.task, facts)} is a dead letter in queue {letter.queue} since "
            f"{when(letter.died_at)}: it was lost {counted(letter.losses, 'time')}."
        )
        yield from map(_loss, letter.history)
        yield f"Next: nothing. To replay it: celery -A APP lease dead retry {facts.task_id}"
    if facts.parked and not facts.held:
        yield from _parked(facts, facts.parked, now)
    elif facts.waiting and not facts.held:
        yield from _waiting(facts, facts.waiting)
    if facts.result and facts.result.is_final:
        yield _over(facts, facts.result)
    yield from _checkpoint(facts)
    yield from _result(facts)


def when(seconds: float | None) -> str:
    """Return seconds since 1970 as a date and time in UTC, for display."""
    if seconds is None:
        return "an unknown time"
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _earlier(facts: Facts) -> Iterator[str]:
    if facts.losses:
        yield f"Deliveries that were lost, of the last week: {len(facts.losses)}"
        yield from map(_loss, facts.losses)


def _loss(entry: Mapping[str, Any]) -> str:
    return (
        f"  delivery {entry.get('deliveries')} to {entry.get('worker') or 'an unknown worker'}: "
        f"received {when(entry.get('since'))}, ended {when(entry.get('ended'))}, "
        f"{reason_of(entry)}" + (f" ({entry['cause']})" if entry.get("cause") else "")
    )


def _held(facts: Facts, row: LeaseRow, now: float) -> Iterator[str]:
    """Yield sentences about a lease from its holder's reply."""
    name = _named(row.task, facts)
    count = f"delivery {row.deliveries}, token {row.token}"
    if row.started_at is None:
        yield (
            f"{name} waits at {row.shown_as} since {when(row.held_since)} "
            f"({span(now - row.held_since)}), {count}."
        )
        yield from _reserved_next(facts, row)
        return
    yield (
        f"{name} runs on {row.shown_as}, process {row.pid}, since "
        f"{when(row.started_at)} ({span(now - row.started_at)}), {count}."
    )
    yield f"Its last beat was {span(row.beat_age)} ago; it said: {_said(row)}"
    yield from _running_next(facts, row)


def _said(row: LeaseRow) -> str:
    rate = row.progress.rate
    speed = f"{rate:.3g} a second over all runs" if rate else ""
    parts = [part for part in (amount(row), speed, row.progress.note) if part not in ("", "-")]
    return ", ".join(parts) or "nothing of its progress"


def _reserved_next(facts: Facts, row: LeaseRow) -> Iterator[str]:
    if row.cancelled:
        yield "Next: it is cancelled, and ends before its own code begins."
    elif facts.eta:
        yield f"Next: it starts at its ETA, {facts.eta}, and its lease is kept until then."
    else:
        yield (
            "Next: it starts when a slot of that worker is free, or its rate limit allows it; its "
            "lease is kept until then."
        )
    yield _if_lost(facts, row)


def _running_next(facts: Facts, row: LeaseRow) -> Iterator[str]:
    left = span(row.remaining)
    if row.state == "lost":
        yield (
            f"Its lease is lost ({row.lost}): its next beat raises LeaseLost, and its outcome "
            "is discarded."
        )
        return
    if row.storing:
        yield (
            "Its task has ended, and its outcome is being stored in the result backend: its lease "
            "is kept until it is, up to lease_max_duration."
        )
        yield _if_lost(facts, row)
        return
    if row.cancelled:
        yield "Next: it is cancelled; its beats raise TaskCancelled."
    if row.mode != "heartbeat":
        yield (
            f"Next: in lease_mode {row.mode!r} its lease, of another {left}, is kept for as "
            "long as its process lives."
        )
    elif row.quiet:
        yield (
            f"Next: it announced a quiet period of another {span(row.quiet)}; its lease expires "
            f"in {left} unless it beats."
        )
    else:
        yield f"Next: its lease expires in {left} unless it beats."
    yield _if_lost(facts, row)


def _if_lost(facts: Facts, row: LeaseRow) -> str:
    left = _losses_left(facts, row.queue, row.max_deliveries, row.losses)
    return f"If it is lost, {_back(facts, row)}; {left}."


def _losses_left(facts: Facts, queue: str, most: int | None, losses: int) -> str:
    if not facts.dead_letter_queue:
        return f"{losses} of its deliveries {'was' if losses == 1 else 'were'} lost so far"
    target = facts.dead_letter_queue.replace("{queue}", queue)
    target += DEAD_AGAIN if target == queue else ""
    left = max(0, (facts.max_deliveries if most is None else most) - losses)
    if left == 0:
        return f"it goes to queue {target} instead of being run again"
    loss = "loss makes" if left == 1 else "losses make"
    return f"{left} more {loss} it a dead letter, in queue {target}"


def _recorded(facts: Facts, lease: LeaseRow, now: float) -> Iterator[str]:
    """Yield sentences about a lease from the broker's records."""
    name, left = _named(lease.task, facts), lease.remaining
    if lease.state == RESTING:
        yield (
            f"{name} is in backoff after its loss for {span(left)} more; then "
            f"{_back(facts, lease)}."
        )
    elif left <= 0:
        yield (
            f"{name} was taken by {lease.worker or 'a worker'} at {when(lease.held_since)} "
            f"(delivery {lease.deliveries}), and its lease expired {span(-left)} ago."
        )
        yield f"Next: {_back(facts, lease)}. If there is no worker: celery -A APP lease reap"
    else:
        yield (
            f"{name} is held by {_holder(facts, lease)} since {when(lease.held_since)} "
            f"({span(now - lease.held_since)}), delivery {lease.deliveries}, token {lease.token}."
        )
        yield (
            f"Next: its lease expires in {span(left)} unless that worker extends it; "
            f"then {_back(facts, lease)}."
        )
    # The record was made when the lease began: a message in a backoff was lost once since.
    rest = _losses_left(facts, lease.queue, lease.max_deliveries, lease.losses + 1)
    yield f"After that, {rest}."


def _holder(facts: Facts, lease: LeaseRow) -> str:
    if not lease.worker:
        return "a worker that the broker does not name,"
    if facts.askable:
        return f"{lease.worker}, which did not reply," if lease.state == ORPHANED else lease.worker
    return f"{lease.worker}, which cannot be asked,"


def _back(facts: Facts, row: LeaseRow) -> str:
    """Return a phrase for the return of a message whose lease has expired."""
    if facts.reaps:
        interval = facts.reaper_interval
        return f"the reaper of any worker returns it to queue {row.queue} within {interval:.3g}s"
    return f"{called(facts.broker)} delivers it again from queue {row.queue}"


def _waiting(facts: Facts, waiting: Waiting) -> Iterator[str]:
    yield (
        f"{_named(waiting.task, facts)} waits in queue {waiting.queue}, {waiting.ahead} before it, "
        f"delivered {counted(waiting.deliveries, 'time')} so far, "
        f"lost {counted(waiting.losses, 'time')}."
    )
    silent = facts.askable and not facts.replied
    yield f"Next: a worker of that queue takes it{'; but no worker replied' if silent else ''}."


def _parked(facts: Facts, parked: Parked, now: float) -> Iterator[str]:
    use, user = parked.use, parked.user
    holders = ", ".join(
        f"{each.task}[{each.task_id}] on {node_of(each.worker)} since {when(each.since)}"
        for each in use.holders
    )
    yield (
        f"{_named(user.task, facts)} waits for key {use.key}, "
        f"{f'held by {holders}' if holders else 'which nobody holds'}; "
        f"position {parked.position} of {len(use.parked)}, "
        f"since {when(user.since)} ({span(now - user.since)})."
    )
    if use.holders:
        yield (
            "Next: when a holder's lease ends, the first in the line is returned to the front of "
            "its queue."
        )
    else:
        yield (
            f"Next: the reaper of any worker, which looks every {facts.reaper_interval:.3g}s, "
            f"returns it to the front of queue {user.queue}."
        )


def _result(facts: Facts) -> Iterator[str]:
    kept = facts.result
    if kept is None:
        yield "The result backend says nothing: there is none, or it does not answer."
    elif kept.state != "PENDING" and not kept.is_final:
        yield f"Its state in the result backend is {kept.state}."
    if not facts.is_known:
        yield f"Nobody knows {facts.task_id}: not {_asked(facts)}. {_guess(facts)}"
        if len(facts.task_id) < WHOLE:
            yield "If that is the beginning of an id, give the whole id."
    yield from _unavailable(facts)


def _over(facts: Facts, kept: Result) -> str:
    over = "is over" if kept.done_at is None else f"has been over since {when(kept.done_at)}"
    by = f", run by {kept.worker}" if kept.worker else ""
    error = f", {kept.error}" if kept.error else ""
    return f"Task {facts.task_id} {over}: its result is {kept.state}{error}{by}."


def _asked(facts: Facts) -> str:
    """Return a phrase for the sources that did not know the task."""
    asked = [
        f"the {counted(facts.replied, 'worker')} that replied" if facts.askable else "",
        "the broker" if facts.records else "the dead-letter queues" if facts.searched else "",
        "the result backend" if facts.result else "",
    ]
    asked = [each for each in asked if each]
    return " or ".join(filter(None, [", ".join(asked[:-1]), *asked[-1:]]))


def _guess(facts: Facts) -> str:
    """Return a guess about a task that no source knows."""
    if facts.records:
        return (
            "It was never sent, its result is no longer kept, or it is with another broker or in a "
            "queue that this app does not know (task_queues)."
        )
    held = "" if facts.askable else "a worker has it, or "
    guess = f"{held}it waits in a queue, or is over and its result is not kept, or was never sent."
    return guess[0].upper() + guess[1:]


def _unavailable(facts: Facts) -> Iterator[str]:
    """Yield sentences about sources that could not be asked, for a task that may not be over."""
    if facts.result and facts.result.is_final:
        return
    if not facts.askable:
        yield (
            f"Workers on {called(facts.broker)} cannot be asked: who holds a task, its last beat "
            "and its progress are in their logs and metrics."
        )
    if not facts.records:
        unknown = f"{facts.broker or 'This broker'} does not say what waits, or who holds it."
        lookup = brokers.driver_class(facts.broker).lookup
        yield lookup.format(id=facts.task_id) if lookup else unknown
        yield "Why earlier deliveries ended is in the workers' logs."


def _checkpoint(facts: Facts) -> Iterator[str]:
    if kept := facts.checkpoint:
        loops = f", with the place of {counted(len(kept.loops), 'loop')}" if kept.loops else ""
        yield (
            f"Its checkpoint was saved at {_saved_at(kept.saved)} by the run with token "
            f"{kept.token}: {counted(kept.size, 'byte')}{loops}."
        )
    if facts.unread:
        yield f"Its checkpoint could not be read: {facts.unread}"


def _saved_at(text: str) -> str:
    try:
        return when(seconds_of(text))
    except ValueError:
        return text or when(None)


def _named(task: str, facts: Facts) -> str:
    return f"{task}[{facts.task_id}]"
