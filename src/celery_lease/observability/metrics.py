"""Every metric, once: name, meaning, labels, and where its value comes from.

Names follow OpenTelemetry's conventions, and Prometheus' are made of them by the rules by which
OpenTelemetry's own exporter does so: a dashboard works with either.

Labels are few on purpose: tasks and queues are bounded by :data:`~celery_lease.worker.tally`, all
others are enumerations, and nothing is labelled by the id of a task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from celery_lease.core.delivery import Answer
from celery_lease.core.lease import Lost, State
from celery_lease.worker.health import Health, health_of
from celery_lease.worker.held import Ending
from celery_lease.worker.tally import OTHERS, Fact, Key, label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_lease.worker.vitals import Look, Vitals

#: What every name begins with, and the label that every metric has.
PREFIX, WORKER = "celery.lease.", "worker"

#: Values of labels and the metric's value for them.
Samples = Iterable[tuple[tuple[str, ...], float]]


class Kind(StrEnum):
    """How a metric's values are to be read."""

    COUNTER = "counter"  #: only grows, from 0 at the worker's start
    GAUGE = "gauge"
    SUM = "sum"  #: a gauge that may be summed up over workers
    HISTOGRAM = "histogram"  #: of round trips to the broker; there is one


class Snapshot:
    """One worker, read once for all metrics of one export; each part when it is first wanted."""

    def __init__(self, vitals: Vitals) -> None:
        self.vitals = vitals

    @cached_property
    def counts(self) -> Mapping[Key, int]:
        """Facts of leases; a copy by one C call, so no writer is in the middle of it."""
        return dict(self.vitals.tally.counts)

    @cached_property
    def look(self) -> Look:
        """What is held now."""
        return self.vitals.look()

    @cached_property
    def health(self) -> Health:
        """What probes are told."""
        return health_of(self.vitals.leases, self.vitals.watchdog.stuck)

    @property
    def pairs(self) -> set[tuple[str, str]]:
        """The pairs of task and queue that are told apart; there are not many."""
        return {(key.task, key.queue) for key in self.counts}

    def held(self) -> Samples:
        """Return how many leases there are for each task, queue and state."""
        pairs = self.pairs
        sums: Counter[tuple[str, str, str]] = Counter()
        for (state, task, queue), number in self.look.held.items():
            sums[*((task, queue) if (task, queue) in pairs else OTHERS), str(state)] += number
        for pair in sorted(pairs):
            for word in STATES:
                yield (*pair, word), sums[*pair, word]

    def counted(self, fact: Fact, details: Iterable[str] = ()) -> Samples:
        """Return the counts of a fact for each task and queue.

        Those with *details* from 0 on: a rate needs to have seen a counter before its first step.
        """
        for pair in sorted(self.pairs):
            for detail in details or ("",):
                count = self.counts.get(Key(fact, detail, *pair), 0)
                yield (*pair, *([detail] if details else [])), count


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str  #: without :data:`PREFIX`
    kind: Kind
    unit: str  #: by UCUM, as OpenTelemetry has it: ``s``, or a word in braces for what is counted
    meaning: str
    read: Callable[[Snapshot], Samples]
    labels: tuple[str, ...] = ()  #: besides :data:`WORKER`

    @property
    def otel_name(self) -> str:
        """The name by OpenTelemetry's conventions."""
        return PREFIX + self.name

    @property
    def prometheus_name(self) -> str:
        """The name by Prometheus' conventions: with its unit, and ``_total`` for a counter."""
        unit = "_seconds" if self.unit == "s" else ""
        total = "_total" if self.kind is Kind.COUNTER else ""
        return self.otel_name.replace(".", "_") + unit + total


PAIR = ("task", "queue")
STATES = tuple(map(str, (State.RESERVED, State.RUNNING, State.LOST)))
REASONS = tuple(label(each.name) for each in Lost)
ENDINGS = tuple(label(each) for each in Ending)
ANSWERS = tuple(each.value for each in Answer)


def _one(value: float | None) -> Samples:
    return () if value is None else (((), value),)


def _sweeps(snapshot: Snapshot, value: float) -> Samples:
    """Return a reaper's value, where there is one: an alert on no sweeps is for no other broker."""
    return _one(value if snapshot.vitals.leases.driver.capabilities.reaps else None)


METRICS = (
    Metric(
        "held",
        Kind.SUM,
        "{lease}",
        "Leases in this worker: reserved, running, or lost under a task that still runs",
        lambda s: s.held(),
        (*PAIR, "state"),
    ),
    Metric(
        "granted",
        Kind.COUNTER,
        "{lease}",
        "Messages taken under a lease",
        lambda s: s.counted(Fact.GRANTED),
        PAIR,
    ),
    Metric(
        "started",
        Kind.COUNTER,
        "{lease}",
        "Leases whose task began to run",
        lambda s: s.counted(Fact.STARTED),
        PAIR,
    ),
    Metric(
        "beats.seen",
        Kind.COUNTER,
        "{beat}",
        "Beats as the keeper sees them: all between two of its looks at a task are one",
        lambda s: s.counted(Fact.BEAT),
        PAIR,
    ),
    Metric(
        "extensions",
        Kind.COUNTER,
        "{extension}",
        "Extensions asked of the broker, by its answer: held, lost, or unknown if it gave none",
        lambda s: s.counted(Fact.EXTENDED, ANSWERS),
        (*PAIR, "answer"),
    ),
    Metric(
        "lost",
        Kind.COUNTER,
        "{lease}",
        "Leases lost while their worker lived: expired, taken by another, or at a limit of time",
        lambda s: s.counted(Fact.LOST, REASONS),
        (*PAIR, "reason"),
    ),
    Metric(
        "ended",
        Kind.COUNTER,
        "{lease}",
        "Leases that left this worker, by how: handed back before they started, handed over by "
        "their task, ended in a shutdown, stalled by the watchdog's word, or as it is called",
        lambda s: s.counted(Fact.ENDED, ENDINGS),
        (*PAIR, "ending"),
    ),
    Metric(
        "reaper.recovered",
        Kind.COUNTER,
        "{lease}",
        "Messages that this worker's reaper returned for holders, here or elsewhere, too late",
        lambda s: _sweeps(s, s.vitals.reaped.recovered),
    ),
    Metric(
        "reaper.stale.duration",
        Kind.COUNTER,
        "s",
        "Seconds between the expiry of leases and the return of their messages by this worker's "
        "reaper, all added up",
        lambda s: _sweeps(s, s.vitals.reaped.stale),
    ),
    Metric(
        "reaper.runs",
        Kind.COUNTER,
        "{run}",
        "Sweeps for expired leases that the broker answered",
        lambda s: _sweeps(s, s.vitals.reaped.runs),
    ),
    Metric(
        "watchdog.stalled",
        Kind.COUNTER,
        "{task}",
        "Tasks that the watchdog ended, or disowned, for their silence",
        lambda s: _one(s.vitals.watchdog.stalled),
    ),
    Metric(
        "watchdog.disowned",
        Kind.COUNTER,
        "{task}",
        "Silent tasks that the watchdog could not end: each keeps its slot of the pool",
        lambda s: _one(s.vitals.watchdog.disowned),
    ),
    Metric(
        "slots.stuck",
        Kind.SUM,
        "{slot}",
        "Slots of the pool that are taken by a disowned task",
        lambda s: _one(s.vitals.watchdog.stuck),
    ),
    Metric(
        "oldest_beat.age",
        Kind.GAUGE,
        "s",
        "Seconds since its last beat, of the running task that has been silent longest",
        lambda s: _one(s.look.silence),
    ),
    Metric(
        "least_remaining",
        Kind.GAUGE,
        "s",
        "Seconds until the first lease of a running task expires; absent while none runs",
        lambda s: _one(s.look.remaining),
    ),
    Metric(
        "keeper.lag",
        Kind.GAUGE,
        "s",
        "Seconds by which the keeper is late with its look at the leases",
        lambda s: _one(s.vitals.keeper_lag()),
    ),
    Metric(
        "loop.age",
        Kind.GAUGE,
        "s",
        "Seconds since the worker's main loop turned, by the keeper's last look",
        lambda s: _one(s.health.loop_age),
    ),
    Metric(
        "ready",
        Kind.SUM,
        "{worker}",
        "1 while the worker takes messages and nothing in it is stuck, as /health/ready says",
        lambda s: _one(float(s.health.ready)),
    ),
    Metric(
        "broker.round_trip",
        Kind.HISTOGRAM,
        "s",
        "Time that the broker took to answer, or not to answer, a batch of extensions",
        lambda _: (),
    ),
)
