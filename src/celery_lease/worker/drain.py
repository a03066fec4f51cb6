"""Drains a worker: it takes no more messages and stays up, until it is resumed or stopped.

::

    drain  ─► no message is taken, leased or plain ─► reserved messages go back to their queue
           ─► started tasks are finished, without a time limit
    resume ─► messages are taken again, unless the worker is stopping by then

A drained worker that reconnects takes nothing, see :class:`~celery_lease.worker.intake.Intake`.
Plain tasks that were received before are run; their messages may be acknowledged already.

Invariant: no message stays between broker and worker. A message that the broker had sent before
the drain is still read, and goes back.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.worker.registry import LeaseRegistry

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Drain:
    """Starts and ends a drain, for remote control commands."""

    leases: LeaseRegistry
    #: Makes the consuming thread read the messages that the broker has already sent, and forget the
    #: requests whose messages went back.
    clear: Callable[[], None]

    def begin(self) -> None:
        """Take no more messages and requeue the reserved ones; a second call requeues again."""
        if not self.leases.intake.draining:
            logger.warning(
                "draining: no more messages are taken until the worker is resumed or stopped"
            )
        self.leases.intake.drain()
        self.leases.requeue_unstarted()
        self.clear()

    def end(self) -> bool:
        """Take messages again; return False if the worker is stopping, and cannot."""
        intake = self.leases.intake
        if intake.draining and not intake.stopping:
            logger.warning("resumed: messages are taken again")
            intake.resume()
        return not intake.stopping

    def state(self) -> dict[str, Any]:
        """Return the state of the drain, with the numbers of leases held and of tasks running."""
        intake = self.leases.intake
        return {
            "draining": intake.draining,
            "stopping": intake.stopping,
            "ready": intake.is_open,
            "leases": len(self.leases),
            "running": len(self.leases.running()),
            "worker_id": self.leases.worker_id,
        }
