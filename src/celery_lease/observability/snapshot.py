"""The values of one export: a snapshot of each worker, and of what runs without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from celery_lease.core.lease import State
from celery_lease.core.stats import OTHERS, Fact, Key, RoundTripStats, Stats, standalone
from celery_lease.worker import telemetry as workers
from celery_lease.worker.telemetry.health import WorkerHealth, health_of

if TYPE_CHECKING:
    from celery_lease.worker.telemetry import Look, Telemetry

#: Values of the labels, with the metric's value.
Samples = Iterable[tuple[tuple[str, ...], float]]

#: The states that are counted.
STATES = tuple(map(str, (State.RESERVED, State.RUNNING, State.LOST)))


class Snapshot:
    """One worker's values for one export; each part is read once, when it is first needed."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        self.worker = telemetry.worker  #: the label's value

    @property
    def stats(self) -> Stats:
        return self.telemetry.stats

    @property
    def round_trips(self) -> RoundTripStats:
        return self.stats.round_trips

    def reads(self, name: str) -> bool:  # noqa: ARG002
        return True

    @cached_property
    def counts(self) -> Mapping[Key, int]:
        """The counters of leases; copied by one C call, so that no writer is in the middle."""
        return dict(self.stats.counts)

    @cached_property
    def look(self) -> Look:
        """The leases that are held now."""
        return self.telemetry.look()

    @cached_property
    def health(self) -> WorkerHealth:
        """The answer to probes."""
        return health_of(self.telemetry.leases, self.telemetry.watchdog.stuck)

    @property
    def pairs(self) -> set[tuple[str, str]]:
        """The pairs of task and queue that are counted separately."""
        return {(key.task, key.queue) for key in self.counts}

    def held(self) -> Samples:
        """Return the number of leases for each task, queue and state."""
        pairs = self.pairs
        sums: Counter[tuple[str, str, str]] = Counter()
        for (state, task, queue), number in self.look.held.items():
            sums[*((task, queue) if (task, queue) in pairs else OTHERS), str(state)] += number
        for pair in sorted(pairs):
            for word in STATES:
                yield (*pair, word), sums[*pair, word]

    def keys_held(self) -> Samples:
        """Return how many exclusive keys are held for each task and queue."""
        pairs = self.pairs
        sums: Counter[tuple[str, str]] = Counter()
        for pair, number in self.look.keys.items():
            sums[pair if pair in pairs else OTHERS] += number
        for pair in sorted(pairs):
            yield pair, sums[pair]

    def parked(self) -> Samples:
        """Return how many messages wait for a key at the broker, for each queue."""
        for queue, number in sorted(self.telemetry.reaped.parked.items()):
            yield (queue, self.telemetry.leases.worker_id), number

    def counted(self, fact: Fact, details: Iterable[str] = ()) -> Samples:
        """Return the counts of a fact for each task and queue.

        With *details* they begin at 0: a rate needs a counter's value before its first step.
        """
        for pair in sorted(self.pairs):
            for detail in details or ("",):
                count = self.counts.get(Key(fact, detail, *pair), 0)
                yield (*pair, *([detail] if details else [])), count


class StandaloneSnapshot(Snapshot):
    """The values of this process's extenders and consumers, which have no worker."""

    #: The metrics that they have.
    NAMES = frozenset({"held", "granted", "extensions", "lost", "ended", "broker.round_trip"})

    def __init__(self) -> None:
        self.worker = standalone.worker

    @property
    def stats(self) -> Stats:
        return standalone

    def reads(self, name: str) -> bool:
        return name in self.NAMES

    def held(self) -> Samples:
        """Return the number of leases of consumers for each queue; all count as running."""
        sums = Counter(queue for each in list(standalone.holders) for queue in each.queues_held())
        queues = {queue for task, queue in self.pairs if task == standalone.CONSUMER}
        for queue in sorted(queues | set(sums)):
            yield (standalone.CONSUMER, queue, str(State.RUNNING)), sums[queue]


def snapshots() -> list[Snapshot]:
    """Return a snapshot of each worker here, and one of extenders and consumers if any are used."""
    found = [Snapshot(each) for each in workers.running()]
    return [*found, StandaloneSnapshot()] if standalone.counts else found
