"""The policy of one message's lease."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from celery_lease.core.keys import OnBusy, Rule
from celery_lease.core.words import plain

#: Seconds that a busy machine may take for an extension.
TIME_TO_ANSWER = 3.0


class Mode(StrEnum):
    """The proof of progress."""

    HEARTBEAT = "heartbeat"  #: the task's own beats
    DAEMON = "daemon"  #: the living process
    OBSERVE = "observe"  #: as daemon, and report the losses that heartbeat would have had


class OnLost(StrEnum):
    """The reaction of a task to the loss of its lease."""

    ABORT = "abort"  #: the next beat raises LeaseLost
    CONTINUE = "continue"  #: only a log line; ack and result stay fenced


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasePolicy:
    """The rules of one lease. Durations are in seconds. The settings create and check it."""

    extension: float = 300.0  #: a beat keeps the message invisible for this long
    interval: float = 60.0  #: least time between two extensions of one message
    max_duration: float = 43200.0  #: the longest time that a lease is held, even with beats
    mode: Mode = Mode.HEARTBEAT
    on_lost: OnLost = OnLost.ABORT
    watchdog_threshold: float | None = None  #: silence that ends the process; None: at expiry
    shutdown_timeout: float = 30.0  #: a stopping worker waits this long for the task
    interruptible: bool = False  #: the task hands over at shutdown
    hold_reserved: bool = True  #: reserved messages are kept while the worker's loop turns
    max_deliveries: int = 5  #: lost deliveries before the message is dead-lettered
    key: Rule | None = None  #: makes the exclusive key of a call whose message has none
    key_limit: int = 1  #: most started tasks that hold the key at once
    on_busy: OnBusy = OnBusy.WAIT  #: what happens to a message whose key is busy

    @property
    def reserved_interval(self) -> float:
        """The time between two extensions of a message that waits for its task to start.

        Half of the lease is left then, and ``TIME_TO_ANSWER`` at least if the interval allows.
        """
        return max(self.interval, min(self.extension / 2, self.extension - TIME_TO_ANSWER))


def warnings_of(policy: LeasePolicy) -> list[str]:
    """Return warnings about allowed but unlikely values in *policy*, one line each."""
    found = []
    if policy.interval > policy.extension / 3:
        found.append(
            f"lease_interval = {plain(policy.interval)} is above a third of lease_extension "
            f"({plain(policy.extension)}): if an extension fails, less than a third of the lease "
            f"may be left to repeat it; set lease_interval to {plain(policy.extension / 5)}"
        )
    if policy.max_duration < policy.extension:
        found.append(
            f"lease_max_duration = {plain(policy.max_duration)} is below lease_extension "
            f"({plain(policy.extension)}): tasks are aborted before their first lease runs out"
        )
    threshold = policy.watchdog_threshold
    if policy.mode is Mode.HEARTBEAT and threshold is not None and threshold > policy.extension:
        found.append(
            f"lease_watchdog_threshold = {plain(threshold)} is above lease_extension "
            f"({plain(policy.extension)}): a stuck process lives on after its lease; leave it at "
            "None to end it at the lease's expiry"
        )
    return found
