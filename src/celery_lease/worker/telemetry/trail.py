"""What happened to each lease, for an exporter of traces; nothing is kept where there is none.

::

    the table, under its lock ─┐
    the keeper's thread        ┴─ append ─► Trail.past ─ popleft ─► the exporter's thread

``past`` is the only thing shared: appending and taking are atomic, and what an exporter does not
take in time falls out at the old end. ``_headers`` is touched under the table's lock alone.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Answer
    from celery_lease.core.lease import Lease

#: Records that wait for the exporter.
MOST = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One lease, from its claim to its end. Times are seconds since 1970."""

    task: str
    task_id: str
    queue: str
    deliveries: int
    losses: int  #: earlier deliveries that were lost
    mode: str
    headers: Mapping[str, object]  #: the message's, in which a trace may be named
    received: float
    started: float | None
    beat: float  #: the last proof of progress
    ended: float
    ending: str
    failure: str = ""  #: why it is a loss or a dead letter; "": it is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One call that extended leases. Times are seconds since 1970."""

    began: float
    ended: float
    asked: int
    answers: Mapping[str, int]  #: how many of each


class Trail:
    """One worker's."""

    def __init__(self, clock: Clock) -> None:
        self.past: deque[Holding | Batch] = deque(maxlen=MOST)
        self._clock = clock
        self._headers: dict[str, Mapping[str, object]] = {}  # of the leases that are held, by tag

    def granted(self, lease: Lease, headers: Mapping[str, object] | None) -> None:
        """Note a lease that begins."""
        self._headers[lease.claim.tag] = headers or {}

    def ended(self, lease: Lease, ending: str, failure: str = "") -> None:
        """Note that a lease is no longer held; what comes after its loss changes nothing."""
        headers = self._headers.pop(lease.claim.tag, None)
        if headers is None:
            return
        epoch = self._clock.wall().timestamp() - self._clock.now()
        claim, started = lease.claim, lease.started_at
        self.past.append(
            Holding(
                task=lease.name,
                task_id=lease.task_id,
                queue=claim.queue,
                deliveries=claim.deliveries,
                losses=claim.losses,
                mode=str(lease.policy.mode),
                headers=headers,
                received=epoch + lease.received_at,
                started=None if started is None else epoch + started,
                beat=epoch + lease.beat,
                ended=epoch + self._clock.now(),
                ending=ending,
                failure=failure,
            )
        )

    def extended(self, began: float, answers: Sequence[Answer], asked: int) -> None:
        """Note a batch of extensions that ended now; *began* by the worker's clock."""
        now = self._clock.now()
        epoch = self._clock.wall().timestamp() - now
        counted = Counter(str(each.value) for each in answers)
        self.past.append(
            Batch(began=epoch + began, ended=epoch + now, asked=asked, answers=counted)
        )
