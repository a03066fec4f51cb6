"""Judges whether a worker is live and ready, for an orchestrator's probes.

``/health/live`` fails when the main loop or the keeper has stood still for so long that only a
restart helps; ``/health/ready`` much earlier, and while the worker drains, stops, or has a slot
that is stuck. Neither takes a lock or asks a broker. ``/metrics`` takes the registry's lock for one
look at it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_lease.health_server import Health

if TYPE_CHECKING:
    from celery_lease.worker.registry import LeaseRegistry

#: Seconds that the main loop and the keeper may stand still before they count as dead, and before
#: the worker counts as not ready.
DEAD, LATE = 60.0, 15.0


@dataclass(frozen=True, slots=True)
class WorkerHealth(Health):
    """The answer to a probe of a worker."""

    loop_age: float  #: seconds since the main loop turned, or since the last beat of a solo task
    keeper_age: float  #: seconds since the keeper looked at the leases
    leases: int
    stuck: int  #: slots of the pool that are taken by tasks which could not be ended
    stopping: bool  #: no more messages are taken


def health_of(leases: LeaseRegistry, stuck: int) -> WorkerHealth:
    """Judge a worker by its keeper's last look and by its watchdog's count of stuck slots."""
    now = leases.clock.now()
    loop_age, keeper_age = now - leases.loop_alive, now - leases.keeper_seen
    age = max(loop_age, keeper_age)
    return WorkerHealth(
        # A stopping worker's loop stands still on purpose; its end is bounded by its own rules.
        live=keeper_age < DEAD if not leases.intake.is_open else age < DEAD,
        ready=age < LATE and leases.intake.is_open and not stuck,
        loop_age=round(loop_age, 3),
        keeper_age=round(keeper_age, 3),
        leases=len(leases),
        stuck=stuck,
        stopping=not leases.intake.is_open,
    )
