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

    from celery_lease.worker.held import Held
    from celery_lease.worker.leases import Leases


def note(leases: Leases, held: Held) -> None:
    """Note that a task begins: from now on an end without an outcome is a loss.

    Called by the main thread, or by a pool's thread or greenlet.
    """
    held.begun = True
    if leases.loop_is_task or held.lease.claim.deliveries > 1:
        send(leases, [held])


def send(leases: Leases, helds: Iterable[Held]) -> bool:
    """Send to the broker which tasks have begun, each once; return whether it answered."""

    def begin(tags: list[str]) -> list[Answer]:
        # A task that is over by now is no news.
        answers = leases.driver.begin(tags)
        return [Answer.HELD if each is Answer.LOST else each for each in answers]

    with leases.lock:
        news = [held for held in helds if not held.begin_sent]
        for held in news:
            held.begin_sent = True
    return leases.settling.send(begin, [held.lease.claim.tag for held in news])
