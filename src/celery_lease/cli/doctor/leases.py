"""Checks for overdue messages and dead letters at the broker."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

from celery_lease import brokers
from celery_lease.cli.dead import likely
from celery_lease.core.findings import Finding, notice, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_lease.cli.doctor.case import Case
    from celery_lease.core.driver import Driver

#: The most messages that are counted.
MANY = 1000
#: Sweeps that may miss a message, and seconds between two sweeps of plain workers, kombu's
#: interval.
SWEEPS, PLAIN_SWEEP = 3, 100.0


def check(case: Case) -> Iterator[Finding]:
    """Yield the findings about messages at the broker, as far as its driver sees them."""
    with closing(brokers.driver(case.channel)) as driver:
        if driver.capabilities.reaps:
            yield _overdue(case, driver)
        if driver.capabilities.dead_letters and case.loaded:  # else their names are unknown
            yield _dead(case, driver)


def _overdue(case: Case, driver: Driver) -> Finding:
    found = driver.overdue(limit=MANY)
    interval = case.loaded.reaper_interval_for([case.shortest_extension]) if case.loaded else 0.0
    sweeps = {True: interval, False: PLAIN_SWEEP}
    missed = [each for each in found if each.late > SWEEPS * sweeps[each.leased]]
    if not missed:
        return ok("leases.overdue", "no message is overdue")
    worst = max(each.late for each in missed)
    return warning(
        "leases.overdue",
        f"{_count(len(missed))} {'message is' if len(missed) == 1 else 'messages are'} overdue, by "
        f"up to {worst:.0f} s",
        "Their leases, or for plain ones the visibility timeout, are over, and nobody has returned "
        f"them to their queues: {_who_should(case)}",
        "Return them by `celery -A APP lease reap`.",
    )


def _who_should(case: Case) -> str:
    """Return a sentence about the workers with leases, which should return them."""
    if not case.can_ask:
        return "whether a worker with leases is up cannot be asked here."
    up = [each.name for each in case.workers if each.leased]
    if not up:
        return "no worker with leases answers. Start one, and it will."
    return f"{', '.join(up)} should have; see in its log whether its sweeps fail."


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
        "They were lost too often. They stay until they are replayed or discarded.",
        "See `celery -A APP lease dead list`, `dead show ID`, then `dead retry` or `dead purge`.",
    )


def _count(number: int) -> str:
    return f"{number} or more" if number >= MANY else str(number)
