"""The ticket: the facts about its lease that a task process gets.

It travels as a dict of plain values, which every serializer takes, in the request's
``delivery_info``, from a worker's main process to its task processes. Tickets of other versions can
be read: missing fields have defaults, unknown fields are ignored.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_lease.core import fields
from celery_lease.core.policy import LeasePolicy, Mode, OnLost

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Key of the ticket in a request's ``delivery_info``.
KEY = "lease"


class Ticket(NamedTuple):
    """One lease, for the process that runs its task. Times are the board's, in seconds.

    All values are plain ones, which every serializer takes.
    """

    board: str = ""  #: address of the beat board
    slot: int = 0  #: number of the record on it
    generation: int = 0  #: of the record
    task: str = ""
    id: str = ""
    tag: str = ""
    token: int | None = None
    deliveries: int = 1
    confirms: bool = True  #: the broker can confirm an expired lease that is still the caller's
    extension: float = LeasePolicy().extension
    mode: str = str(Mode.HEARTBEAT)
    on_lost: str = str(OnLost.ABORT)
    longest: float = math.inf  #: ``lease_max_duration``
    longest_until: float = math.inf  #: when the broker ends the lease
    worker: str = ""
    publishes: bool = False  #: its progress is published

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Ticket:
        """Parse a worker's dict, of this version or another."""
        try:
            return cls(**raw)
        except TypeError:  # another version's
            return cls(**{name: raw[name] for name in cls._fields if name in raw})

    @property
    def fields(self) -> dict[str, object]:
        """The fields of a log line about the lease."""
        return fields.of_lease(self.id, self.task, self.tag, self.token, self.worker)
