"""Defines every metric, once: its name, meaning, labels, and value.

Names follow OpenTelemetry's conventions; those of Prometheus are derived from them as
OpenTelemetry's own exporter does: a dashboard works with either.

Labels are few on purpose: tasks and queues are limited by :mod:`~celery_lease.core.stats`, all
others are enumerations, and no label has a task's id.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from celery_lease.core.delivery import Answer
from celery_lease.core.loss import CONSEQUENCES, LossReason
from celery_lease.core.stats import Fact, label
from celery_lease.worker.entries import Ending

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.observability.snapshot import Samples, Snapshot

#: The prefix of all names, and the label of all metrics.
PREFIX, WORKER = "celery.lease.", "worker"
#: The label for the unique identity of a worker process; its node's name is not unique.
IDENTITY = "worker_id"


class Kind(StrEnum):
    """The type of a metric's values."""

    COUNTER = "counter"  #: only grows, from 0 at the worker's start
    GAUGE = "gauge"
    SUM = "sum"  #: a gauge that can be summed over workers
    HISTOGRAM = "histogram"  #: of calls to the broker; there is one


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str  #: without :data:`PREFIX`
    kind: Kind
    unit: str  #: by UCUM, as in OpenTelemetry: ``s``, or a word in braces for the counted thing
    meaning: str
    read: Callable[[Snapshot], Samples]
    labels: tuple[str, ...] = ()  #: beside :data:`WORKER`

    @property
    def otel_name(self) -> str:
        return PREFIX + self.name

    @property
    def prometheus_name(self) -> str:
        """The name by Prometheus' conventions: with its unit, and ``_total`` for a counter."""
        unit = "_seconds" if self.unit == "s" else ""
        name = self.otel_name.replace(".", "_").removesuffix("_total") + unit
        return f"{name}_total" if self.kind is Kind.COUNTER else name


PAIR = ("task", "queue")
REASONS = tuple(CONSEQUENCES[each].label for each in LossReason)
ENDINGS = tuple(label(each) for each in Ending)
ANSWERS = tuple(each.value for each in Answer)


def _one(value: float | None) -> Samples:
    return () if value is None else (((), value),)


def _sweeps(snapshot: Snapshot, value: float) -> Samples:
    """Return a reaper's value, if the driver reaps: otherwise missing sweeps would alert."""
    for _, one in _deprecated(snapshot, value):
        yield (snapshot.telemetry.leases.worker_id,), one


def _deprecated(snapshot: Snapshot, value: float) -> Samples:
    """Return the value for a deprecated metric, which has no label for the identity."""
    return _one(value if snapshot.telemetry.leases.driver.capabilities.reaps else None)


METRICS = (
    Metric(
        "held",
        Kind.SUM,
        "{lease}",
        "Leases of this worker: reserved, running, or lost while the task still runs",
        lambda s: s.held(),
        (*PAIR, "state"),
    ),
    Metric(
        "granted",
        Kind.COUNTER,
        "{lease}",
        "Messages claimed",
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
        "Beats that the keeper saw: all beats between two looks at a task count as one",
        lambda s: s.counted(Fact.BEAT),
        PAIR,
    ),
    Metric(
        "extensions",
        Kind.COUNTER,
        "{extension}",
        "Extensions sent to the broker, by its answer: held, lost, or unknown without an answer",
        lambda s: s.counted(Fact.EXTENDED, ANSWERS),
        (*PAIR, "answer"),
    ),
    Metric(
        "lost",
        Kind.COUNTER,
        "{lease}",
        "Leases lost while their worker lived, by reason",
        lambda s: s.counted(Fact.LOST, REASONS),
        (*PAIR, "reason"),
    ),
    Metric(
        "ended",
        Kind.COUNTER,
        "{lease}",
        "Leases that ended, by how they ended",
        lambda s: s.counted(Fact.ENDED, ENDINGS),
        (*PAIR, "ending"),
    ),
    Metric(
        "keys.held",
        Kind.SUM,
        "{lease}",
        "Leases in this worker whose task holds an exclusive key",
        lambda s: s.keys_held(),
        PAIR,
    ),
    Metric(
        "keys.parked",
        Kind.GAUGE,
        "{message}",
        "Messages at the broker that wait for an exclusive key, by the last sweep of this worker's "
        "reaper: beside those in the queue itself. Every worker reports the same",
        lambda s: s.parked(),
        ("queue", IDENTITY),
    ),
    Metric(
        "keys.parkings",
        Kind.COUNTER,
        "{message}",
        "Messages that this worker parked because their exclusive key was busy",
        lambda s: s.counted(Fact.PARKED),
        PAIR,
    ),
    Metric(
        "keys.waited.count",
        Kind.COUNTER,
        "{task}",
        "Tasks that got their exclusive key after they had been parked for it",
        lambda s: s.counted(Fact.WAITED),
        PAIR,
    ),
    Metric(
        "keys.waited.duration",
        Kind.COUNTER,
        "s",
        "Seconds from the first parking of these tasks until they got their key, all added up",
        lambda s: _one(s.telemetry.stats.key_wait),
    ),
    Metric(
        "reaper.recovered.count",
        Kind.COUNTER,
        "{lease}",
        "Messages with an expired lease, of any worker, that this worker's reaper returned",
        lambda s: _sweeps(s, s.telemetry.reaped.recovered),
        (IDENTITY,),
    ),
    Metric(
        "reaper.stale.duration",
        Kind.COUNTER,
        "s",
        "Sum of the seconds between the expiry of a lease and the return of its message by this "
        "worker's reaper",
        lambda s: _sweeps(s, s.telemetry.reaped.stale),
        (IDENTITY,),
    ),
    Metric(
        "reaper.runs.total",
        Kind.COUNTER,
        "{run}",
        "Sweeps for expired leases that the broker answered",
        lambda s: _sweeps(s, s.telemetry.reaped.runs),
        (IDENTITY,),
    ),
    Metric(
        "reaper.recovered",
        Kind.COUNTER,
        "{lease}",
        "Deprecated, will be removed in the next release: use `reaper.recovered.count`",
        lambda s: _deprecated(s, s.telemetry.reaped.recovered),
    ),
    Metric(
        "reaper.runs",
        Kind.COUNTER,
        "{run}",
        "Deprecated, will be removed in the next release: use `reaper.runs.total`. Both have one "
        "name in Prometheus",
        lambda s: _deprecated(s, s.telemetry.reaped.runs),
    ),
    Metric(
        "watchdog.stalled",
        Kind.COUNTER,
        "{task}",
        "Silent tasks that the watchdog ended or disowned",
        lambda s: _one(s.telemetry.watchdog.stalled),
    ),
    Metric(
        "watchdog.disowned",
        Kind.COUNTER,
        "{task}",
        "Silent tasks that the watchdog could not end; each keeps its slot of the pool",
        lambda s: _one(s.telemetry.watchdog.disowned),
    ),
    Metric(
        "slots.stuck",
        Kind.SUM,
        "{slot}",
        "Slots of the pool that are taken by a disowned task",
        lambda s: _one(s.telemetry.watchdog.stuck),
    ),
    Metric(
        "oldest_beat.age",
        Kind.GAUGE,
        "s",
        "Seconds since the last beat of the running task that has been silent longest",
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
        "Seconds by which the keeper is late to look at the leases",
        lambda s: _one(s.telemetry.keeper_lag()),
    ),
    Metric(
        "loop.age",
        Kind.GAUGE,
        "s",
        "Seconds since the worker's main loop last ran, measured at the keeper's last look",
        lambda s: _one(s.health.loop_age),
    ),
    Metric(
        "ready",
        Kind.SUM,
        "{worker}",
        "1 while the worker takes messages and nothing in it is stuck, as in /health/ready",
        lambda s: _one(float(s.health.ready)),
    ),
    Metric(
        "broker.round_trip",
        Kind.HISTOGRAM,
        "s",
        "Time until the broker answered a batch of extensions, or until the call failed",
        lambda _: (),
    ),
)
