"""What an operator reads about leases: one line for each loss, and for what leads to one.

All at WARNING or above, because each is something to act on; with task and lease as fields.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_lease.core.policy import Mode, OnLost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_lease.worker.diagnosis import Diagnosis
    from celery_lease.worker.held import Held

logger = logging.getLogger(__name__)

NEXT_BEAT = "its next beat is told"
RUNS_ON = "it runs on, the message may be run elsewhere"
THROWN_AWAY = "it ended after that, its outcome is thrown away"


def lost(held: Held, then: str = NEXT_BEAT) -> None:
    """Say that a lease was lost, and what comes of it."""
    lease = held.lease
    if then == NEXT_BEAT and (
        lease.policy.on_lost is OnLost.CONTINUE or lease.policy.mode is Mode.OBSERVE
    ):
        then = RUNS_ON
    logger.warning(
        "lease of task %s[%s] lost (%s), delivery %d, token %d; %s",
        lease.name,
        lease.task_id,
        lease.lost,
        lease.claim.deliveries,
        lease.claim.token,
        then,
        extra=held.fields,
    )


def slow(held: Held) -> None:
    """Say that half of a lease went by without a beat."""
    lease = held.lease
    logger.warning(
        "task %s[%s] has not beaten for half of its lease of %g s; without a beat it is lost, "
        "and run elsewhere. Beat more often, raise lease_extension, or use lease_mode 'daemon'",
        lease.name,
        lease.task_id,
        lease.policy.extension,
        extra=held.fields,
    )


def unproven(held: Held) -> None:
    """Say when heartbeat mode would have lost an observed lease."""
    lease = held.lease
    expiry = max(held.beat + lease.policy.extension, held.quiet)
    logger.warning(
        "task %s[%s] is observed: lease_mode 'heartbeat' would have lost its lease after "
        "%.1f s, with no beat for %g s",
        lease.name,
        lease.task_id,
        expiry - (lease.started_at or expiry),
        lease.policy.extension,
        extra=held.fields,
    )


def stalled(held: Held, silence: float, seen: Diagnosis) -> None:
    """Say what a task does that is about to be ended because it said nothing for too long."""
    lease = held.lease
    logger.error(
        "task %s[%s] has not beaten for %.1f s, process %s is %s: it is ended, its message "
        "returned; delivery %d%s",
        lease.name,
        lease.task_id,
        silence,
        held.pid,
        seen,
        lease.claim.deliveries,
        f"\n{seen.stack}" if seen.stack else "",
        extra=held.fields,
    )


def disowned(held: Held) -> None:
    """Say that a task could not be ended, and what it can still do: nothing that counts."""
    lease = held.lease
    logger.error(
        "task %s[%s] cannot be ended in this pool: it is disowned, its message was returned and "
        "its outcome will be thrown away; its slot is taken until it ends",
        lease.name,
        lease.task_id,
        extra=held.fields,
    )


def process_gone(held: Held, cause: object) -> None:
    """Say that a task's process ended under it."""
    lease = held.lease
    logger.error(
        "task %s[%s]: its process %s ended under it (%s), delivery %d, token %d",
        lease.name,
        lease.task_id,
        held.pid,
        cause,
        lease.claim.deliveries,
        lease.claim.token,
        extra=held.fields,
    )


def left_behind(helds: Iterable[Held]) -> None:
    """Say which leases a worker holds when it ends; each expires, and its message comes back."""
    for held in helds:
        lease = held.lease
        logger.warning(
            "worker ends while it holds task %s[%s]: its message comes back when its lease expires",
            lease.name,
            lease.task_id,
            extra=held.fields,
        )


def untold(count: int) -> None:
    """Say that a worker ends before the broker has heard of all that has ended in it."""
    if count:
        logger.error(
            "the broker has not answered: worker ends before %d messages were acknowledged or "
            "returned; what was claimed comes back when its lease expires, and is run once more",
            count,
        )
