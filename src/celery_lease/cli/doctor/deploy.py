"""Whether whatever stops the workers gives them the time that their settings ask for.

The rule is that of docs/shutdown.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from celery_lease.cli.doctor.findings import Finding, error, notice, ok, warning
from celery_lease.cli.group import MARGIN
from celery_lease.core.policy import plain
from celery_lease.group import longest_stop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_lease.cli.doctor.case import Case


def check(case: Case, grace: float | None, levels: int, before: float) -> Iterator[Finding]:
    """Yield what a grace period of *grace* seconds is worth.

    Args:
        case: The app.
        grace: Seconds between the first sign and SIGKILL; None: unknown.
        levels: How many different priorities a group of workers has.
        before: Seconds of these that pass before SIGTERM, in a preStop hook.
    """
    yield from _signals()
    if case.loaded is None:
        return
    timeout = max(policy.shutdown_timeout for policy in [case.loaded.policy, *case.leases])
    needed = before + longest_stop(timeout + MARGIN, levels)
    if grace is None:
        yield notice(
            "deploy.grace",
            f"grace period not checked: workers need more than {plain(needed)} s",
            "What stops a worker cannot be seen from here.",
            "Say it by --grace-period: terminationGracePeriodSeconds, TimeoutStopSec, "
            "stopwaitsecs or stop_grace_period.",
        )
    elif grace > needed:
        yield ok("deploy.grace", f"a grace period of {plain(grace)} s is above {plain(needed)} s")
    else:
        yield _too_short(grace, needed, timeout, before)


def _too_short(grace: float, needed: float, timeout: float, before: float) -> Finding:
    what = f"a grace period of {plain(grace)} s is not above the {plain(needed)} s that a stop may "
    what += f"take with a lease_shutdown_timeout of {plain(timeout)} s"
    why = "A worker that is killed before it has settled its messages leaves them held until their "
    why += "leases expire: time is lost, not messages."
    remedy = f"Raise the grace period above {plain(needed)} s, or lower lease_shutdown_timeout."
    # Shorter than the wait for tasks itself: those that would have ended in time are run again.
    severe = error if grace <= before + timeout else warning
    return severe("deploy.grace", what, why, remedy)


def _signals() -> Iterator[Finding]:
    if os.environ.get("REMAP_SIGTERM") == "SIGQUIT":
        yield warning(
            "deploy.sigterm",
            "REMAP_SIGTERM=SIGQUIT is in this environment",
            "Every SIGTERM becomes a cold shutdown, which ends tasks instead of waiting for them.",
            "Leave it out where workers run.",
        )
