"""Informs the broker that a task has begun: from then on the delivery can be lost.

A message that was only reserved when its worker was killed must not be dead-lettered with the one
that killed it. This worker knows at once that a task has begun; the broker has to know it in case
the whole worker dies. The keeper's next pass sends it for all first deliveries that have begun, in
one call, and not for a task that is over by then. From the second delivery on, and where the task
runs in the main loop, it is sent before the task can do anything: else a task that kills its worker
before the keeper's next pass would never reach the limit of deliveries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_lease.core.delivery import Answer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_lease.worker.entries import LeaseEntry
    from celery_lease.worker.registry import LeaseRegistry


def note(leases: LeaseRegistry, entry: LeaseEntry) -> None:
    """Note that a task begins: from now on an end without an outcome is a loss.

    Called by the main thread, or by a pool's thread or greenlet.
    """
    entry.begun = True
    if leases.loop_is_task or entry.lease.claim.deliveries > 1:
        send(leases, [entry])


def send(leases: LeaseRegistry, entries: Iterable[LeaseEntry]) -> bool:
    """Send to the broker which tasks have begun, each once; return whether it answered."""

    def begin(tags: list[str]) -> list[Answer]:
        # A task that is over by now is no news.
        answers = leases.driver.begin(tags)
        return [Answer.HELD if each is Answer.LOST else each for each in answers]

    with leases.lock:
        news = [entry for entry in entries if not entry.begin_sent]
        for entry in news:
            entry.begin_sent = True
    return leases.outbox.send(begin, [entry.lease.claim.tag for entry in news])
