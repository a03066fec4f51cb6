"""Counts the changes of this worker's leases, and makes events of them for listeners.

One place for both, so that metrics and events agree. The events' group is not Celery's ``task``:
monitors would take their types for states of the task.

Who writes what, under which lock:

===============================  =================================================================
``counts``, facts of leases      threads that change the registry, under its lock
``news``                         the same, reaper and watchdog; appending is atomic
``round_trips``, ``keeper_*``    the keeper's thread alone
``listening``                    the main loop; others see it a little later
``trail``                        set before the threads start; see :mod:`.trail`
===============================  =================================================================

Readers take no lock: they copy with one C call and see numbers that only grow, each of them right,
though not all of the same instant. A fact costs one addition to a dict, and readers cost nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from types import MappingProxyType
from typing import TYPE_CHECKING

from celery_lease.core.lease import Lease, State
from celery_lease.core.loss import CONSEQUENCES
from celery_lease.core.stats import Fact, Stats, label
from celery_lease.worker.entries import Ending, LeaseEntry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Answer, Reaped
    from celery_lease.worker.telemetry.trail import Trail

#: Events that wait for the main loop; it sends them at least once a second while it turns.
MOST_NEWS = 10_000

GRANTED_EVENT = "lease-granted"
STARTED_EVENT = "lease-started"
LOST_EVENT = "lease-lost"
STALLED_EVENT = "lease-stalled"
ENDED_EVENT = "lease-ended"
PARKED_EVENT = "lease-parked"
RECOVERED_EVENT = "lease-recovered"


class LeaseStats(Stats):
    """The stats of one worker; see the module for its threads."""

    def __init__(self, worker_id: str, clock: Clock) -> None:
        super().__init__()
        self.endings: Counter[Ending] = Counter()
        self.news: deque[tuple[str, dict[str, object]]] = deque(maxlen=MOST_NEWS)
        self.listening = False  #: events are wanted
        self.trail: Trail | None = None  #: the facts for an exporter of traces
        self.key_wait = 0.0  #: sum of the seconds for which started tasks had been parked
        self.keeper_lag = 0.0  #: seconds by which the keeper's last pass was late
        self.keeper_due = clock.now()  #: when its next one is due at the latest
        self._worker_id, self._clock = worker_id, clock

    def changed(self, lease: Lease) -> None:
        """Record that a lease was granted, started or lost. The lease calls this itself."""
        claim = lease.claim
        if lease.state is State.RESERVED:
            self.count(Fact.GRANTED, lease.name, claim.queue)
            if self.listening:
                self._emit(GRANTED_EVENT, lease, queue=claim.queue, deliveries=claim.deliveries)
        elif lease.state is State.RUNNING:
            self.count(Fact.STARTED, lease.name, claim.queue)
            if self.listening:
                self._emit(STARTED_EVENT, lease)
        elif lease.lost is not None:
            self.count(Fact.LOST, lease.name, claim.queue, CONSEQUENCES[lease.lost].label)
            self._emit(LOST_EVENT, lease, reason=str(lease.lost))
            if self.trail is not None:
                reason = CONSEQUENCES[lease.lost].label
                self.trail.ended(lease, str(Ending.LOST), reason)

    def ended(
        self, lease: Lease, ending: Ending, why: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        """Record how a lease left this worker, and the known facts of its loss."""
        self.endings[ending] += 1
        self.count(Fact.ENDED, lease.name, lease.claim.queue, label(ending))
        if self.listening:
            facts = {name: value for name, value in why.items() if name != "stack"}
            self._emit(ENDED_EVENT, lease, ending=str(ending), **facts)
        if self.trail is not None:
            failed = ending.is_loss or ending is Ending.DEAD_LETTERED
            self.trail.ended(lease, str(ending), label(ending) if failed else "")

    def parked(self, name: str, task_id: str, queue: str, key: str, by: str) -> None:
        """Note that a message waits at the broker for its key, which task *by* holds."""
        self.count(Fact.PARKED, name, queue)
        about = {"uuid": task_id, "name": name, "queue": queue, "key": key, "held_by": by}
        self._append(PARKED_EVENT, about)

    def waited(self, lease: Lease) -> None:
        """Note that a task has its key; and for how long it waited, if it was parked for it."""
        if lease.claim.parked_at is not None:
            self.count(Fact.WAITED, lease.name, lease.claim.queue)
            now = self._clock.wall().timestamp()
            self.key_wait += max(0.0, now - lease.claim.parked_at)

    def beaten(self, lease: Lease) -> None:
        """Record that a task has beaten since the keeper's last look."""
        self.count(Fact.BEAT, lease.name, lease.claim.queue)

    def answered(self, lease: Lease, answer: Answer) -> None:
        """Record the broker's answer to an extension."""
        self.count(Fact.EXTENDED, lease.name, lease.claim.queue, answer.value)

    def extended(self, began: float, answers: Sequence[Answer], asked: int) -> None:
        """Note a batch of extensions that ended now."""
        if self.trail is not None:
            self.trail.extended(began, answers, asked)

    def stalled(
        self, entry: LeaseEntry, silence: float, doing: str, *, ended: bool, at: float
    ) -> None:
        """Make the event of a task that was ended for its silence. The watchdog counts it.

        *at* is when the silence was found, in seconds since the epoch: by the time that the process
        has ended, the message may run elsewhere already.
        """
        fields = {"silent": round(silence, 1), "doing": doing, "ended": ended, "timestamp": at}
        self._emit(STALLED_EVENT, entry.lease, task_pid=entry.pid, **fields)

    def recovered(self, reaped: Reaped) -> None:
        """Make the event of a message that came back as its holder, here or elsewhere, was late.

        The reaper counts it.
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
                **({"cause": about["cause"]} if "cause" in about else {}),
            }
            self._append(RECOVERED_EVENT, fields)

    def keeper_begins(self) -> None:
        """Record by how many seconds the keeper's pass that begins now is late."""
        self.keeper_lag = max(0.0, self._clock.now() - self.keeper_due)

    def keeper_waits(self, seconds: float) -> None:
        """Record when the keeper's next pass is due."""
        self.keeper_due = self._clock.now() + seconds

    def _emit(self, kind: str, lease: Lease, **fields: object) -> None:
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
            self.news.append((kind, {"timestamp": self._clock.wall().timestamp(), **fields}))
