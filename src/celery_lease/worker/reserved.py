"""The leases that wait for the pool, by the time of the keeper's next look at each.

A pass of the keeper costs what is due, not what is held: thousands of messages may wait. They lie
in slices of time, a few to each length of a lease, so that a move is two changes of a dict, and the
extensions of one slice share a call. Guarded by the registry's lock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_lease.worker.entries import LeaseEntry

#: Slices in one length of a lease. An extension is late by one at most.
SLICES = 32
#: Longest slice for a lease whose first expiry is the broker's, in seconds.
SHORT = 0.5


class ReservedLeases:
    """Entries by slices of time; each stays in its slice until it is moved or removed."""

    def __init__(self) -> None:
        self._slices: dict[float, dict[str, LeaseEntry]] = {}

    def put_off(self, entry: LeaseEntry, now: float) -> None:
        """Set the next look at a lease: when its extension is due, or when it expires."""
        lease = entry.lease
        length = lease.policy.extension / SLICES
        if lease.extended_to is None:
            length = min(length, SHORT)
        due = (max(lease.next_at, now) // length + 1) * length
        self.remove(entry)
        entry.look_at = min(due, lease.deadline)
        self._slices.setdefault(entry.look_at, {})[lease.claim.tag] = entry

    def remove(self, entry: LeaseEntry) -> None:
        """Forget a lease: its task was given to the pool, or it has left this worker."""
        entries = self._slices.get(entry.look_at)
        if entries is not None:
            entries.pop(entry.lease.claim.tag, None)
            if not entries:
                del self._slices[entry.look_at]

    def due(self, now: float) -> list[LeaseEntry]:
        """Return the leases to look at now. They stay due until they are put off."""
        due = [at for at in self._slices if at <= now]
        return [entry for at in due for entry in self._slices[at].values()]

    def next_at(self, now: float) -> float:
        """Return when the next ones are due that are not yet."""
        return min((at for at in self._slices if at > now), default=math.inf)
