"""Describes a worker for the comparison with others: versions, clock, pool, identity, paces."""

from __future__ import annotations

import logging
import os
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from celery_lease.core.clock import SystemClock
from celery_lease.core.words import counted, plain
from celery_lease.worker import compat

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

    from celery_lease.settings import Settings
    from celery_lease.worker.policies import Policies
    from celery_lease.worker.runtime import Runtime

logger = logging.getLogger(__name__)

#: Distributions whose versions should agree.
PACKAGES = ("celery-lease", "celery", "kombu")


@cache
def versions() -> dict[str, str]:
    """Return the installed versions, by distribution."""
    return {name: version(name) for name in PACKAGES}


def runtime_of(consumer: Consumer) -> Runtime | None:
    """Return the runtime of a worker; None: it has no leases."""
    return getattr(consumer, "lease_runtime", None)


def introduction(consumer: Consumer) -> dict[str, str]:
    """Return the version and the identity of a worker with leases, for ``inspect stats``."""
    return {"version": versions()["celery-lease"], "worker": identity(consumer)}


def identity(consumer: Consumer) -> str:
    """Return a worker's unique identity; "": it holds no leases."""
    runtime = runtime_of(consumer)
    return "" if runtime is None else runtime.leases.worker_id


def log_start(consumer: Consumer, policies: Policies, loaded: Settings) -> None:
    """Log in one line which leases this worker keeps, and with which settings."""
    found = policies.all()
    extensions = {plain(policy.extension) for policy in found.values()}
    modes = {str(policy.mode) for policy in found.values()}
    runtime = runtime_of(consumer)
    covered = len(policies.covered)
    dead_letters = runtime is not None and runtime.leases.dead_letter_queue_of is not None
    logger.info(
        "leases for %d %s: lease_mode %s, lease_extension %s s, broker %s, dead-letter queue %s%s",
        len(found),
        "task" if len(found) == 1 else "tasks",
        "/".join(sorted(modes)) or str(loaded.policy.mode),
        "/".join(sorted(extensions, key=float)) or plain(loaded.policy.extension),
        compat.broker_of(consumer),
        loaded.dead_letter_queue if dead_letters else "of the broker's own",
        f", by lease_tasks: {covered}" if covered else "",
    )


def log_uncovered(policies: Policies) -> None:
    """Log the tasks that ``lease_tasks`` names and that cannot have leases."""
    if policies.uncovered:
        logger.warning(
            "no lease by lease_tasks for %s: %s",
            counted(len(policies.uncovered), "task"),
            "; ".join(f"{name} ({why})" for name, why in sorted(policies.uncovered.items())),
        )
    for pattern in policies.idle_patterns():
        logger.warning("lease_tasks: pattern %r matches no undecorated task", pattern)


def paces(consumer: Consumer) -> dict[str, Any]:
    """Return the pace of each task of a worker since its start, by the task's name."""
    runtime = runtime_of(consumer)
    if runtime is None:
        return {}
    with runtime.leases.lock:
        return runtime.leases.paces.to_dict()


def about(consumer: Consumer) -> dict[str, Any]:
    """Return a worker's versions, clock, pool, and the tasks that were slow to beat.

    The clock is seconds since the epoch.
    """
    runtime = runtime_of(consumer)
    return {
        "versions": versions(),
        "clock": SystemClock().wall().timestamp(),
        "pid": os.getpid(),
        "worker": identity(consumer),
        "pool": type(consumer.pool).__module__.rpartition(".")[2],
        "enabled": runtime is not None,
        "silent": sorted(list(runtime.keeper.silent if runtime else ())),  # noqa: C414  (a copy first: another thread adds to it)
    }
