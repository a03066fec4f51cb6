"""The reasons of a loss, and the consequences of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Flags that a task reads at its next beat, one bit each.
FLAG_LOST = 1
FLAG_SUPERSEDED = 2
FLAG_MAX_DURATION = 4
FLAG_SHUTDOWN = 8
FLAG_CANCELLED = 16
FLAG_BROKER_LIMIT = 32
FLAG_OUT_OF_TIME = 64  #: the worker stops, and no longer waits for an outcome to be stored
FLAG_RELEASED = 128  #: the worker itself has ended the lease; it was not lost


class LossReason(StrEnum):
    """The reason of a loss, as it stands in logs, errors, events and the broker's records."""

    EXPIRED = "expired"
    SUPERSEDED = "another delivery owns the message"
    MAX_DURATION = "lease_max_duration reached"
    BROKER_LIMIT = "the broker holds no message longer"
    RESULT_NOT_STORED = "its result could not be stored"


@dataclass(frozen=True, slots=True, kw_only=True)
class Consequences:
    """The consequences of one reason."""

    label: str  #: its label in the metrics
    flag: int  #: its flag for the task's process
    final: bool = False  #: an outcome that is not stored by now must not be stored any more

    @property
    def flags(self) -> int:
        """All flags that the task's process gets."""
        return FLAG_LOST | self.flag


#: In order of precedence: of several flags the first reason is the cause of the others.
CONSEQUENCES: Mapping[LossReason, Consequences] = {
    LossReason.MAX_DURATION: Consequences(label="max_duration", flag=FLAG_MAX_DURATION, final=True),
    LossReason.BROKER_LIMIT: Consequences(label="limit", flag=FLAG_BROKER_LIMIT, final=True),
    LossReason.SUPERSEDED: Consequences(label="taken", flag=FLAG_SUPERSEDED),
    LossReason.EXPIRED: Consequences(label="expired", flag=FLAG_LOST),
    # The flag of a lease that lasted too long: the task has ended, and needs no other one.
    LossReason.RESULT_NOT_STORED: Consequences(
        label="result_not_stored", flag=FLAG_MAX_DURATION, final=True
    ),
}
#: The flags of a task whose lease its worker has ended: the message is no longer its own.
FLAGS_ENDED = CONSEQUENCES[LossReason.SUPERSEDED].flags
#: The flags that end the storing of an outcome, even if the lease could be kept.
FLAGS_FINAL = FLAG_OUT_OF_TIME | sum({each.flag for each in CONSEQUENCES.values() if each.final})


def reason_in(flags: int) -> LossReason | None:
    """Return the reason in a task's flags; None: there is none."""
    return next((reason for reason, each in CONSEQUENCES.items() if flags & each.flag), None)
