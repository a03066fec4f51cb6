"""A worker that takes no more messages and stays up, until it is told to go on or to stop.

::

    drain  ─► the door is closed, for leased and plain tasks ─► what waits goes back to its queue
           ─► what runs is finished as ever, without a bound
    resume ─► the door opens again, unless the worker is stopping by then

The door belongs to the worker's table of leases, which outlives its connections: a drained worker
that reconnects takes nothing. Plain tasks that were received before are run; their messages may be
acknowledged already.

Invariant: no message stays between broker and worker. One that the broker had given out when the
door was closed is still read, and goes back.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.worker.leases import Leases
    from celery_lease.worker.shutdown import Shutdown

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Drain:
    """Closes and opens a worker's door on demand; for remote control commands."""

    leases: Leases
    shutdown: Shutdown
    #: Have the consuming thread read what the broker has given out, and forget the requests whose
    #: messages went back.
    clear: Callable[[], None]
    draining: bool = False

    def begin(self) -> None:
        """Take nothing more, and hand back what has not started; a second call does so again."""
        if not self.draining:
            logger.warning("draining: no more messages are taken until told to go on or to stop")
        self.draining = self.leases.door_closed = True
        self.leases.hand_back_unstarted()
        self.clear()

    def end(self) -> bool:
        """Take messages again; return whether that can be: a worker that stops does not go on."""
        if self.draining and not self.shutdown.asked:
            logger.warning("drained no more: messages are taken again")
            self.draining = self.leases.door_closed = False
            if self.shutdown.asked:  # by a signal that came in just now
                self.leases.door_closed = True
        return not self.shutdown.asked

    def state(self) -> dict[str, Any]:
        """Return what an operator who waits for the drain wants to know."""
        return {
            "draining": self.draining,
            "stopping": self.shutdown.asked,
            "ready": not self.leases.door_closed,
            "leases": len(self.leases),
            "running": len(self.leases.running()),
            "worker_id": self.leases.worker_id,
        }
