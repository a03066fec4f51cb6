"""Log lines about leases: one for each loss, and for each state that leads to one.

A loss is at WARNING or above, because it needs an operator; task and lease are fields.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_lease.core.fields import TASK_ID, TASK_NAME
from celery_lease.core.policy import Mode, OnLost
from celery_lease.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_lease.worker.diagnosis import Diagnosis
    from celery_lease.worker.entries import LeaseEntry

logger = logging.getLogger(__name__)

NEXT_BEAT = "its next beat raises LeaseLost"
RUNS_ON = "it runs on, the message may be run elsewhere"
RUN_AGAIN = "its message is returned to its queue"
THROWN_AWAY = "it ended after that, its outcome is discarded"


def lost(entry: LeaseEntry, then: str = NEXT_BEAT, *, stood: float = 0.0) -> None:
    """Log that a lease was lost, and the consequence; *stood*: seconds this process stood still."""
    lease = entry.lease
    if then == NEXT_BEAT and (
        lease.policy.on_lost is OnLost.CONTINUE or lease.policy.mode is Mode.OBSERVE
    ):
        then = RUNS_ON
    logger.warning(
        "lease of task %s[%s] lost (%s), delivery %d, token %d; %s",
        *entry.task,
        lease.lost,
        lease.claim.deliveries,
        lease.claim.token,
        f"{then}; this process stood still for {stood:.1f} s" if stood else then,
        extra=entry.fields,
    )


def unanswered_start(entry: LeaseEntry) -> None:
    """Say that a task is not started because its acknowledgement was not answered."""
    logger.error(
        "task %s[%s] not started: the broker did not answer its acknowledgement, and it is to run "
        "once at most. It is requeued, unless the broker had accepted that",
        *entry.task,
        extra=entry.fields,
    )


def outran(task: str, held: float, queue: str, timeout: float, *, begun: bool) -> None:
    """Log that RabbitMQ stops waiting for a plain task; *timeout* 0: it has stopped already.

    At ERROR if the task runs: it is run twice at once, as RabbitMQ does without leases.
    """
    then = (
        f"returned before RabbitMQ's consumer_timeout of {timeout:g} s closes the channel under "
        "all tasks of this worker"
        if timeout
        else "returned by RabbitMQ, which closed the channel, for its consumer_timeout perhaps"
    )
    facts = (task, queue, round(held, 1), then)
    if begun:
        logger.error(
            "task %s of queue %s, without a lease, still runs %g s after its message was received: "
            "the message was %s, and is delivered again. Raise the server's consumer_timeout (or "
            "the queue's x-consumer-timeout) and say so in broker_transport_options: "
            "{'consumer_timeout': seconds}, let the task acknowledge early, or split it",
            *facts,
        )
    else:
        logger.warning(
            "task %s of queue %s, without a lease, has not begun %g s after its message was "
            "received: the message was %s, and is delivered again. Raise the server's "
            "consumer_timeout, or prefetch less",
            *facts,
        )


def slow(entry: LeaseEntry) -> None:
    """Log that half of a lease went by without a beat."""
    logger.warning(
        "task %s[%s] has not beaten for half of its lease of %g s; without a beat it is lost, "
        "and run elsewhere. Beat more often, raise lease_extension, or use lease_mode 'daemon'",
        *entry.task,
        entry.lease.policy.extension,
        extra=entry.fields,
    )


def storing(entry: LeaseEntry) -> None:
    """Log that a task has ended, and that its outcome takes long to be stored."""
    logger.warning(
        "task %s[%s] has ended, but its outcome has not been stored, or its callbacks have not "
        "been sent, for half of its lease of %g s: tried again as long as the lease is held",
        *entry.task,
        entry.lease.policy.extension,
        extra=entry.fields,
    )


def unproven(entry: LeaseEntry) -> None:
    """Log after how many seconds heartbeat mode would have lost an observed lease."""
    lease = entry.lease
    expiry = max(entry.beat + lease.policy.extension, entry.quiet)
    logger.warning(
        "task %s[%s] is observed: lease_mode 'heartbeat' would have lost its lease after "
        "%.1f s, with no beat for %g s",
        *entry.task,
        expiry - (lease.started_at or expiry),
        lease.policy.extension,
        extra=entry.fields,
    )


def stalled(entry: LeaseEntry, silence: float, seen: Diagnosis) -> None:
    """Log what a silent task does before the watchdog ends it."""
    logger.error(
        "task %s[%s] has not beaten for %.1f s, process %s is %s: it is ended, its message "
        "returned; delivery %d%s",
        *entry.task,
        silence,
        entry.pid,
        seen,
        entry.lease.claim.deliveries,
        f"\n{seen.stack}" if seen.stack else "",
        extra=entry.fields,
    )


def disowned(entry: LeaseEntry) -> None:
    """Log that a task could not be ended, and that its outcome will not count."""
    logger.error(
        "task %s[%s] cannot be ended in this pool: it is disowned, its message was returned and "
        "its outcome will be discarded; its slot is taken until it ends",
        *entry.task,
        extra=entry.fields,
    )


def process_gone(entry: LeaseEntry, cause: object, stack: str = "") -> None:
    """Log that a task's process died, with the cause and the stack if they are known."""
    lease = entry.lease
    logger.error(
        "task %s[%s]: its process %s died (%s), delivery %d, token %d%s",
        *entry.task,
        entry.pid or "in the pool",  # it has not reported the start
        cause,
        lease.claim.deliveries,
        lease.claim.token,
        f"\n{stack}" if stack else "",
        extra=entry.fields,
    )


def parked(name: str, task_id: str, key: str, by: str) -> None:
    """Say that a message waits at the broker for its exclusive key."""
    logger.info(
        "task %s[%s] is parked: key %s is held by task %s",
        name,
        task_id,
        key,
        by or "?",
        extra={TASK_NAME: name, TASK_ID: task_id},
    )


def revoked(entry: LeaseEntry, reason: str) -> None:
    """Say that a task is not run, because of its exclusive key."""
    logger.info("task %s[%s] is revoked: %s", *entry.task, reason, extra=entry.fields)


def left_behind(entries: Iterable[LeaseEntry]) -> None:
    """Log the leases that a worker holds at its end; each expires and its message comes back."""
    for entry in entries:
        logger.warning(
            "the worker exits and still holds task %s[%s]: its message is returned to its queue "
            "when its lease expires",
            *entry.task,
            extra=entry.fields,
        )


def unsettled(count: int) -> None:
    """Log how many messages were not settled at the broker before the worker's end."""
    if count:
        logger.error(
            "the broker has not answered: the worker exits before it could acknowledge or "
            "return %s; a message with a lease is returned when that expires, and is run once more",
            counted(count, "message"),
        )
