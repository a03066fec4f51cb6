"""What became of one task, what is with it now, and what happens next, in sentences.

No I/O: everything that could be found out is in :class:`Facts`, and so is what could not.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery_lease.cli.results import is_final
from celery_lease.cli.rows import amount, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery_lease.cli.rows import Row
    from celery_lease.core.dead import DeadLetter
    from celery_lease.core.records import Recorded, Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known of one task."""

    task_id: str
    replied: int  #: workers that were heard
    held: Sequence[Row] = ()  #: what they hold of the task
    eta: str | None = None  #: until when a worker keeps it waiting
    recorded: Sequence[Recorded] = ()  #: the broker's own record of its leases
    losses: Sequence[Mapping[str, Any]] = ()  #: deliveries that were lost
    waiting: Waiting | None = None
    dead: Sequence[DeadLetter] = ()
    result: str | None = None  #: its state in the result backend; None: no answer from there
    broker: str = ""  #: its transport
    records: bool = False  #: the broker can be asked without a worker
    reaps: bool = False  #: a worker's reaper returns what expired, not the broker
    reaper_interval: float = 10.0
    max_deliveries: int = 5  #: by the app's settings
    dead_letter_queue: str = ""  #: where it goes when it was lost too often; "": the broker's rule

    @property
    def is_known(self) -> bool:
        """Whether anybody knows the task."""
        found = (self.held, self.recorded, self.waiting, self.dead)
        return any(found) or self.result not in (None, "PENDING")


def tell(facts: Facts, now: float) -> Iterator[str]:
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
            f"{when(letter.died_at)}: it was lost {letter.losses} times."
        )
        yield from map(_loss, letter.history)
        yield f"Next: nothing, until somebody says: celery lease dead retry {facts.task_id}"
    if facts.waiting and not facts.held:
        yield from _waiting(facts, facts.waiting)
    yield from _result(facts)


def when(seconds: float | None) -> str:
    """Return a time since 1970 as people write it, in UTC."""
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
        f"{entry.get('reason')}"
    )


def _held(facts: Facts, row: Row, now: float) -> Iterator[str]:
    """Tell of a lease as its holder describes it."""
    name = _named(row["task"], facts)
    count = f"delivery {row['deliveries']}, token {row['token']}"
    if row["started_at"] is None:
        yield (
            f"{name} waits at {row['hostname']} since {when(row['held_since'])} "
            f"({span(now - row['held_since'])}), {count}."
        )
        yield from _reserved_next(facts, row)
        return
    yield (
        f"{name} runs on {row['hostname']}, process {row['pid']}, since "
        f"{when(row['started_at'])} ({span(now - row['started_at'])}), {count}."
    )
    yield f"Its last beat was {span(row['beat_age'])} ago; it said: {_said(row)}"
    yield from _running_next(facts, row)


def _said(row: Row) -> str:
    parts = [part for part in (amount(row), row["progress"]["note"]) if part not in ("", "-")]
    return ", ".join(parts) or "nothing of its progress"


def _reserved_next(facts: Facts, row: Row) -> Iterator[str]:
    if row.get("cancelled"):
        yield "Next: it is cancelled, and ends before its own code begins."
    elif facts.eta:
        yield f"Next: it starts at its ETA, {facts.eta}, and its lease is kept until then."
    else:
        yield (
            "Next: it starts when a slot of that worker is free, or its rate limit allows it; its "
            "lease is kept until then."
        )
    yield _if_lost(facts, row)


def _running_next(facts: Facts, row: Row) -> Iterator[str]:
    left = span(row["remaining"])
    if row["state"] == "lost":
        yield (
            f"Its lease is lost ({row['lost']}): its next beat tells it, and whatever it returns "
            "is thrown away."
        )
        return
    if row.get("cancelled"):
        yield "Next: it is cancelled, and was told or is told at its next beat."
    if row["mode"] != "heartbeat":
        yield (
            f"Next: in lease_mode {row['mode']!r} its lease, of another {left}, is kept for as "
            "long as its process lives."
        )
    elif row.get("quiet"):
        yield (
            f"Next: it announced a quiet call of another {span(row['quiet'])}; its lease expires "
            f"in {left} unless it beats."
        )
    else:
        yield f"Next: its lease expires in {left} unless it beats."
    yield _if_lost(facts, row)


def _if_lost(facts: Facts, row: Row) -> str:
    back = (
        f"the reaper of any worker returns it to queue {row['queue']} within "
        f"{facts.reaper_interval:g}s"
        if facts.reaps
        else f"{facts.broker} gives it out again from queue {row['queue']}"
    )
    return (
        f"If it is lost, {back}; "
        f"{_losses_left(facts, row['queue'], row['max_deliveries'], row['losses'])}."
    )


def _losses_left(facts: Facts, queue: str, most: int, losses: int) -> str:
    if not facts.dead_letter_queue:
        return f"{losses} of its deliveries were lost so far"
    target = facts.dead_letter_queue.replace("{queue}", queue)
    left = max(0, most - losses)
    if left == 0:
        return f"it goes to queue {target} instead of being run again"
    return f"{left} more losses make it a dead letter, in queue {target}"


def _recorded(facts: Facts, lease: Recorded, now: float) -> Iterator[str]:
    """Tell of a lease whose holder did not reply, or is no more."""
    name = _named(lease.task, facts)
    queue = lease.queue
    if lease.resting:
        yield (
            f"{name} rests after its loss, so that it does not go round too fast: it goes back to "
            f"queue {queue} in {span(lease.remaining)}."
        )
    elif lease.remaining <= 0:
        yield (
            f"{name} was taken by {lease.worker} at {when(lease.since)} (delivery "
            f"{lease.deliveries}), and its lease expired {span(-lease.remaining)} ago."
        )
        yield (
            f"Next: the reaper of any worker returns it to queue {queue} within "
            f"{facts.reaper_interval:g}s. If there is no worker: celery lease reap"
        )
    else:
        yield (
            f"{name} is held by {lease.worker}, which did not reply, since {when(lease.since)} "
            f"({span(now - lease.since)}), delivery {lease.deliveries}, token {lease.token}."
        )
        yield (
            f"Next: its lease expires in {span(lease.remaining)} unless that worker extends it; "
            f"then the reaper of any worker returns it to queue {queue} within "
            f"{facts.reaper_interval:g}s."
        )
    told = _losses_left(facts, queue, facts.max_deliveries, lease.losses + (not lease.resting))
    yield f"If that comes to pass, {told}."


def _waiting(facts: Facts, waiting: Waiting) -> Iterator[str]:
    yield (
        f"{_named(waiting.task, facts)} waits in queue {waiting.queue}, {waiting.ahead} before it, "
        f"delivered {waiting.deliveries} times so far, lost {waiting.losses} times."
    )
    yield "Next: a worker of that queue takes it" + (
        "; but no worker replied." if not facts.replied else "."
    )


def _result(facts: Facts) -> Iterator[str]:
    if facts.result is None:
        yield "The result backend says nothing: there is none, or it does not answer."
    elif is_final(facts.result):
        yield f"It is over: its result is {facts.result}."
    elif facts.result != "PENDING":
        yield f"Its state in the result backend is {facts.result}."
    if not facts.is_known:
        yield (
            f"Nobody knows {facts.task_id}: not the {facts.replied} workers that replied"
            + (", the broker" if facts.records else "")
            + (", or the result backend" if facts.result else "")
            + ". It was never sent, its result is no longer kept, or it is with another broker or "
            "in a queue that this app does not know (task_queues)."
        )
    if not facts.records:
        yield (
            f"On {facts.broker or 'this broker'} only workers can be asked: what waits in a queue, "
            "who holds what without replying, and why earlier deliveries ended cannot be told."
        )


def _named(task: str, facts: Facts) -> str:
    return f"{task}[{facts.task_id}]"
