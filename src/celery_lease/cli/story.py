"""What became of one task, what is with it now, and what happens next, in sentences.

No I/O: everything that could be found out is in :class:`Facts`, and so is what could not.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery_lease.cli.broker import called
from celery_lease.cli.results import is_final
from celery_lease.cli.rows import amount, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery_lease.cli.results import Result
    from celery_lease.cli.rows import Row
    from celery_lease.core.dead import DeadLetter
    from celery_lease.core.records import Recorded, Waiting


#: What brokers without a record of leases do not tell, and where to look instead.
UNTOLD = {
    "amqp": (
        "RabbitMQ does not tell which messages wait in a queue, or which worker has one that does "
        "not reply; how many there are: rabbitmqctl list_queues name messages_ready "
        "messages_unacknowledged"
    ),
    "sqs": (
        "SQS does not tell which messages wait in a queue, or who received one; how many there "
        "are: ApproximateNumberOfMessages and ApproximateNumberOfMessagesNotVisible of the queue"
    ),
    "pgmq": (
        "How often it was delivered, and until when it is hidden, for each queue: SELECT read_ct, "
        "vt FROM pgmq.q_QUEUE WHERE message->'headers'->>'id' = '{id}'"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known of one task."""

    task_id: str
    replied: int  #: workers that were heard
    askable: bool = True  #: workers can be asked on this broker
    held: Sequence[Row] = ()  #: what they hold of the task
    eta: str | None = None  #: until when a worker keeps it waiting
    recorded: Sequence[Recorded] = ()  #: the broker's own record of its leases
    losses: Sequence[Mapping[str, Any]] = ()  #: deliveries that were lost
    waiting: Waiting | None = None
    dead: Sequence[DeadLetter] = ()
    searched: bool = False  #: its dead-letter queues were looked into
    result: Result | None = None  #: what the result backend has; None: no answer from there
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
        return any(found) or (self.result is not None and self.result.state != "PENDING")


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
        yield f"Next: nothing, until somebody says: celery -A APP lease dead retry {facts.task_id}"
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
        else f"{called(facts.broker)} gives it out again from queue {row['queue']}"
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
            f"{facts.reaper_interval:g}s. If there is no worker: celery -A APP lease reap"
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
    silent = facts.askable and not facts.replied
    yield f"Next: a worker of that queue takes it{'; but no worker replied' if silent else ''}."


def _result(facts: Facts) -> Iterator[str]:
    kept = facts.result
    if kept is None:
        yield "The result backend says nothing: there is none, or it does not answer."
    elif is_final(kept.state):
        yield _over(kept)
    elif kept.state != "PENDING":
        yield f"Its state in the result backend is {kept.state}."
    if not facts.is_known:
        yield f"Nobody knows {facts.task_id}: not {_asked(facts)}. {_guess(facts)}"
    yield from _untold(facts)


def _over(kept: Result) -> str:
    at = f" since {when(kept.done_at)}" if kept.done_at is not None else ""
    by = f", run by {kept.worker}" if kept.worker else ""
    error = f", {kept.error}" if kept.error else ""
    return f"It is over{at}: its result is {kept.state}{error}{by}."


def _asked(facts: Facts) -> str:
    """Return who was asked and did not know the task."""
    asked = [
        f"the {facts.replied} workers that replied" if facts.askable else "",
        "the broker" if facts.records else "the dead-letter queues" if facts.searched else "",
        "the result backend" if facts.result else "",
    ]
    asked = [each for each in asked if each]
    return " or ".join(filter(None, [", ".join(asked[:-1]), *asked[-1:]]))


def _guess(facts: Facts) -> str:
    """Return what a task may be that nobody knows."""
    if facts.records:
        return (
            "It was never sent, its result is no longer kept, or it is with another broker or in a "
            "queue that this app does not know (task_queues)."
        )
    held = "" if facts.askable else "a worker has it, or "
    guess = f"{held}it waits in a queue, or is over and its result is not kept, or was never sent."
    return guess[0].upper() + guess[1:]


def _untold(facts: Facts) -> Iterator[str]:
    """Say what nobody could be asked for, of a task that may not be over."""
    if facts.result and is_final(facts.result.state):
        return
    if not facts.askable:
        yield (
            f"Workers on {called(facts.broker)} cannot be asked: who holds a task, its last beat "
            "and its progress are in their logs and metrics."
        )
    if not facts.records:
        unknown = f"{facts.broker or 'This broker'} does not tell what waits, or who holds it."
        yield UNTOLD.get(facts.broker, unknown).format(id=facts.task_id)
        yield "Why earlier deliveries ended is in the workers' logs."


def _named(task: str, facts: Facts) -> str:
    return f"{task}[{facts.task_id}]"
