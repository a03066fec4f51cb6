"""What happened to this worker's leases: counted always, told in events while somebody listens.

The one place for both, so that metrics and events cannot disagree on what a fact is. The events'
group is not Celery's ``task``: monitors would take their types for states of the task.

Who writes what, under which lock:

=================================  ===============================================================
:attr:`Tally.counts`, lease facts  whoever changes the table of leases, under that table's lock
:attr:`Tally.news`                 the same, reaper and watchdog; appending is atomic
:attr:`Tally.trips`, ``keeper_*``  the keeper's thread alone
:attr:`Tally.listening`            the main loop; others see it a little later
=================================  ===============================================================

Readers take no lock: they copy with one C call and see numbers that only grow, each of them right,
though not all of the same instant. Nobody pays for readers; a fact costs one addition to a dict.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from celery_lease.core.lease import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Answer, Reaped
    from celery_lease.core.lease import Lease
    from celery_lease.worker.held import Ending, Held

#: Pairs of task and queue that are told apart; beyond these, all are counted as :data:`OTHERS`.
MOST_PAIRS = 200
OTHERS = ("(other)", "(other)")
#: Events that wait for the main loop; it sends them at least once a second while it turns.
MOST_NEWS = 10_000
#: Upper bounds, in seconds, of the classes that round trips to the broker are sorted into.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

GRANTED_EVENT = "lease-granted"
STARTED_EVENT = "lease-started"
LOST_EVENT = "lease-lost"
STALLED_EVENT = "lease-stalled"
ENDED_EVENT = "lease-ended"
RECOVERED_EVENT = "lease-recovered"


class Fact(StrEnum):
    """What is counted of leases, by task and queue."""

    GRANTED = "granted"
    STARTED = "started"
    BEAT = "beat"  #: seen by the keeper: all beats between two of its looks are one
    EXTENDED = "extended"  #: by the broker's answer
    LOST = "lost"  #: by the reason
    ENDED = "ended"  #: left this worker, by its ending


class Key(NamedTuple):
    """What is counted apart."""

    fact: Fact
    detail: str  #: an answer, a reason or an ending; else empty
    task: str
    queue: str


class Trips:
    """How long calls took, sorted into classes. For one writing thread."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)  #: of each class alone; the last has no upper bound
        self.seconds = 0.0  #: of all calls
        #: Told of each; for an exporter that sorts for itself.
        self.told: Callable[[float], object] = lambda _: None

    def add(self, seconds: float) -> None:
        """Count one call."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds
        self.told(seconds)


class Tally:
    """One worker's; see the module for who may call what."""

    def __init__(self, worker_id: str, clock: Clock) -> None:
        self.counts: Counter[Key] = Counter()
        self.endings: Counter[Ending] = Counter()
        self.news: deque[tuple[str, dict[str, object]]] = deque(maxlen=MOST_NEWS)
        self.listening = False  #: somebody wants events
        self.trips = Trips()
        self.keeper_lag = 0.0  #: seconds by which the keeper's last pass was late
        self.keeper_due = clock.now()  #: when its next one is due at the latest
        self._worker_id, self._clock = worker_id, clock
        self._pairs: set[tuple[str, str]] = set()

    def changed(self, lease: Lease) -> None:
        """Note that a lease has come to a state: granted, started or lost. It says so itself."""
        if lease.state is State.RESERVED:
            self._count(Fact.GRANTED, lease)
            claim = lease.claim
            self._tell(GRANTED_EVENT, lease, queue=claim.queue, deliveries=claim.deliveries)
        elif lease.state is State.RUNNING:
            self._count(Fact.STARTED, lease)
            self._tell(STARTED_EVENT, lease)
        elif lease.lost is not None:
            self._count(Fact.LOST, lease, label(lease.lost.name))
            self._tell(LOST_EVENT, lease, reason=str(lease.lost))

    def ended(self, lease: Lease, ending: Ending) -> None:
        """Note how a lease left this worker."""
        self.endings[ending] += 1
        self._count(Fact.ENDED, lease, label(ending))
        self._tell(ENDED_EVENT, lease, ending=str(ending))

    def beaten(self, lease: Lease) -> None:
        """Note that a task has beaten since the keeper last looked."""
        self._count(Fact.BEAT, lease)

    def answered(self, lease: Lease, answer: Answer) -> None:
        """Note what the broker said to an extension."""
        self._count(Fact.EXTENDED, lease, answer.value)

    def stalled(self, held: Held, silence: float, doing: str, *, ended: bool) -> None:
        """Tell what a task did that was ended for its silence. The watchdog has counted it."""
        fields = {"silent": round(silence, 1), "doing": doing, "ended": ended}
        self._tell(STALLED_EVENT, held.lease, task_pid=held.pid, **fields)

    def recovered(self, reaped: Reaped) -> None:
        """Tell that a message came back whose holder, here or elsewhere, was too late.

        The reaper has counted it.
        """
        if reaped.leased and not (reaped.error or reaped.rested or reaped.unclaimed):
            about = reaped.about
            fields = {
                "uuid": about.get("id"),
                "name": about.get("task"),
                "lease": reaped.tag,
                "token": about.get("token"),
                "holder": about.get("worker"),
                "queue": reaped.queue,
                "late": round(reaped.late, 3),
            }
            self._append(RECOVERED_EVENT, fields)

    def keeper_begins(self) -> None:
        """Note by how much the keeper's pass that begins now is late."""
        self.keeper_lag = max(0.0, self._clock.now() - self.keeper_due)

    def keeper_waits(self, seconds: float) -> None:
        """Note when the keeper's next pass is due."""
        self.keeper_due = self._clock.now() + seconds

    def _count(self, fact: Fact, lease: Lease, detail: str = "") -> None:
        pair = (lease.name, lease.claim.queue)
        if pair not in self._pairs:
            if len(self._pairs) < MOST_PAIRS:
                self._pairs.add(pair)
            else:
                pair = OTHERS
        self.counts[Key(fact, detail, *pair)] += 1

    def _tell(self, kind: str, lease: Lease, **fields: object) -> None:
        if not self.listening:
            return
        about = {
            "uuid": lease.task_id,
            "name": lease.name,
            "lease": lease.claim.tag,
            "token": lease.claim.token,
            "holder": self._worker_id,
        }
        self._append(kind, {**about, **fields})

    def _append(self, kind: str, fields: Mapping[str, object]) -> None:
        if self.listening:
            # The main loop may send it much later: it stands still while the worker stops.
            self.news.append((kind, {**fields, "timestamp": self._clock.wall().timestamp()}))


def label(words: str) -> str:
    """Return what is counted apart as the value of a label: ``handed_back``, ``max_duration``."""
    return words.lower().replace(" ", "_").replace("-", "_")
