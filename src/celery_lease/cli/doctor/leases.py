"""Whether somebody looks after what was lost: messages that are overdue, and dead letters."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from celery_lease import brokers
from celery_lease.cli.dead import likely
from celery_lease.cli.doctor.findings import Finding, notice, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_lease.cli.doctor.case import Case
    from celery_lease.core.delivery import Driver, Reaped

#: So many are counted.
MANY = 1000
#: Sweeps that a message may be missed by, and seconds between two of plain workers, as kombu's are.
SWEEPS, PLAIN_SWEEP = 3, 100.0


def check(case: Case) -> Iterator[Finding]:
    """Yield what lies at the broker and should not, as far as its driver can tell."""
    driver = brokers.driver(case.channel)
    try:
        if driver.capabilities.reaps:
            yield _overdue(case, driver)
        if driver.capabilities.buries:
            yield _dead(case, driver)
    finally:
        driver.close()


def _overdue(case: Case, driver: Driver) -> Finding:
    found = driver.overdue(limit=MANY)
    interval = case.loaded.reaper_interval_for([case.shortest_extension]) if case.loaded else 0.0
    missed = [each for each in found if each.late > SWEEPS * _sweep(each, interval)]
    if not missed:
        return ok("leases.overdue", "no message is overdue")
    worst = max(each.late for each in missed)
    return warning(
        "leases.overdue",
        f"{_count(len(missed))} messages are overdue, by up to {worst:.0f} s",
        "Their leases, or for plain ones the visibility timeout, are over, and nobody has returned "
        "them to their queues: no worker with leases is up.",
        "Start one, or return them by `celery -A APP lease reap`.",
    )


def _sweep(each: Reaped, interval: float) -> float:
    return interval if each.leased else PLAIN_SWEEP


def _dead(case: Case, driver: Driver) -> Finding:
    letters = driver.dead_letters()
    counts = {
        queue: sum(1 for _ in islice(letters.letters(queue), MANY))
        for queue in letters.queues(likely(case.app))
    }
    if not any(counts.values()):
        return ok("leases.dead", "there are no dead letters")
    shown = ", ".join(f"{_count(count)} in {queue}" for queue, count in sorted(counts.items()))
    return notice(
        "leases.dead",
        f"dead letters: {shown}",
        "Their deliveries ended by loss too often. They stay until somebody decides.",
        "See `celery -A APP lease dead list`, `dead show ID`, then `dead retry` or `dead purge`.",
    )


def _count(number: int) -> str:
    return f"{number} or more" if number >= MANY else str(number)
