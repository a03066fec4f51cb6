"""Checks whether the deployment gives workers enough time to stop.

The rule is that of docs/shutdown.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from celery_lease import brokers
from celery_lease.core.findings import Finding, error, notice, ok, warning
from celery_lease.core.words import plain
from celery_lease.group import MARGIN, longest_stop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_lease.cli.doctor.case import Case


def check(case: Case, grace: float | None, levels: int, before: float) -> Iterator[Finding]:
    """Yield the findings about a grace period of *grace* seconds.

    Args:
        case: The app.
        grace: Seconds between the first signal and SIGKILL; None: unknown.
        levels: The number of different priorities in a group of workers.
        before: Seconds of the grace period that pass before SIGTERM, in a preStop hook.
    """
    yield from _signals()
    if case.loaded is None:
        return
    timeout = max(policy.shutdown_timeout for policy in [case.loaded.policy, *case.leases])
    connection = case.app.connection_for_read()  # never opened
    poll = brokers.driver_class(connection.transport.driver_type).longest_poll(connection)
    needed = before + longest_stop(max(timeout, poll) + MARGIN, levels)
    if grace is None:
        yield notice(
            "deploy.grace",
            f"grace period not checked: workers need more than {plain(needed)} s",
            "The time that a worker has before it is killed is not visible from here.",
            "Pass it as --grace-period SECONDS: the value of terminationGracePeriodSeconds, "
            "TimeoutStopSec, stopwaitsecs or stop_grace_period.",
        )
    elif grace > needed:
        yield ok("deploy.grace", f"a grace period of {plain(grace)} s is above {plain(needed)} s")
    else:
        yield _too_short(grace, needed, timeout, poll, before)


def _too_short(grace: float, needed: float, timeout: float, poll: float, before: float) -> Finding:
    why = "If a worker is killed before it has returned its messages, they stay held until their "
    why += "leases expire: time is lost, not messages."
    cause, setting = f"a lease_shutdown_timeout of {plain(timeout)} s", "lease_shutdown_timeout"
    if poll > timeout:
        cause = f"polls that take up to {plain(poll)} s"
        setting = "broker_transport_options['wait_time_seconds']"
        why += " What its last poll still brings is hidden for the queue's visibility timeout."
    what = f"a grace period of {plain(grace)} s is not above the {plain(needed)} s that a stop may "
    remedy = f"Raise the grace period above {plain(needed)} s, or lower {setting}."
    # Less than the wait for tasks itself: tasks that would end in time are run again.
    severe = error if grace <= before + max(timeout, poll) else warning
    return severe("deploy.grace", f"{what}take with {cause}", why, remedy)


def _signals() -> Iterator[Finding]:
    if os.environ.get("REMAP_SIGTERM") == "SIGQUIT":
        yield warning(
            "deploy.sigterm",
            "REMAP_SIGTERM=SIGQUIT is in this environment",
            "Every SIGTERM becomes a cold shutdown, which ends tasks instead of waiting for them.",
            "Leave it out where workers run.",
        )
