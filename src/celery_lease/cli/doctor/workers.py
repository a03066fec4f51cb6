"""Whether the workers that are up agree with each other, with this app, and with the broker."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from celery_lease.cli.doctor.findings import Finding, notice, ok, warning
from celery_lease.cli.doctor.survey import TIMEOUTS
from celery_lease.core.policy import plain
from celery_lease.worker.about import versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from celery_lease.cli.doctor.case import Case
    from celery_lease.cli.doctor.survey import WorkerAnswer

HERE = "this command"
#: Seconds by which clocks may differ without anybody noticing.
AGREEABLE = 1.0
#: Above this a visibility timeout was raised for long tasks; seconds.
LONG = 6 * 3600.0


def check(case: Case, timeout: float) -> Iterator[Finding]:
    """Yield what is to be said of workers that answered within *timeout* seconds."""
    if not case.can_ask:
        yield notice(
            "workers.unasked",
            "workers cannot be asked: there is no remote control here",
            "Their versions, visibility timeouts and clocks were not checked.",
        )
    elif not case.workers:
        yield notice(
            "workers.none",
            f"no worker answered within {plain(timeout)} s",
            "Their versions, visibility timeouts and clocks were not checked.",
            "Start one, or give them more time by --timeout. Solo workers answer between tasks.",
        )
    else:
        yield ok(
            "workers.answered", f"{len(case.workers)} workers answered: {_names(case.workers)}"
        )
        yield from _plain(case)
        yield from _versions(case)
        yield from _settings(case)
        yield from _clocks(case)
    if case.driver_type in TIMEOUTS:
        yield from _visibility(case)


def _names(workers: Iterable[WorkerAnswer]) -> str:
    return ", ".join(worker.name for worker in workers)


def _plain(case: Case) -> Iterator[Finding]:
    """Yield the workers without leases; those that share queues with leased ones by themselves."""
    leased = [worker for worker in case.workers if worker.leased]
    shared = {queue for worker in leased for queue in worker.queues}
    beside = [each for each in case.workers if not each.leased and shared & set(each.queues)]
    for worker in beside:
        queues = ", ".join(sorted(shared & set(worker.queues)))
        yield warning(
            "workers.plain",
            f"{worker.name} has no celery-lease, or no leased task, and takes messages of {queues}",
            "A leased message that it gets is a plain one there: no beat keeps it, no token fences "
            "it, and it is run again after the visibility timeout.",
            "Update it, or give leased tasks a queue that only workers with leases consume.",
        )
    apart = [each for each in case.workers if not each.leased and each not in beside]
    if apart:
        yield notice(
            "workers.plain",
            f"without leases: {_names(apart)}",
            "They take messages of other queues than the workers with leases.",
        )
    for worker in leased:
        if worker.about and not worker.about.get("enabled"):
            yield notice("workers.disabled", f"{worker.name} runs with lease_enabled off")


def _versions(case: Case) -> Iterator[Finding]:
    mixed = False
    for name, here in versions().items():
        found: dict[str, list[str]] = defaultdict(list, {here: [HERE]})
        for worker in case.workers:
            if told := worker.versions.get(name):
                found[told].append(worker.name)
        if len(found) > 1:
            mixed = True
            yield _mixed(name, found)
    if not mixed:
        yield ok("workers.versions", "all have the versions of this command's packages")


def _mixed(name: str, found: Mapping[str, list[str]]) -> Finding:
    who = "; ".join(f"{version}: {', '.join(names)}" for version, names in sorted(found.items()))
    facts = (
        "workers.versions",
        f"different versions of {name}: {who}",
        "That is what a rollout looks like; nobody tests all combinations.",
        "Finish the rollout, and pin the version.",
    )
    return warning(*facts) if name == "celery-lease" else notice(*facts)


def _settings(case: Case) -> Iterator[Finding]:
    """Yield workers that run with other settings than this app has by now."""
    if case.loaded is None:
        return
    here = dict(case.loaded.explicit)
    for worker in case.workers:
        theirs = dict(worker.settings)
        names = sorted(name for name in {*here, *theirs} if here.get(name) != theirs.get(name))
        if worker.leased and names:
            shown = ", ".join(
                f"{name} = {theirs.get(name, 'not set')} there, {here.get(name, 'not set')} here"
                for name in names
            )
            yield notice(
                "workers.settings",
                f"{worker.name}: {shown}",
                "It was started with another configuration, or with another environment.",
                "Restart it, if it should have this one.",
            )


def _visibility(case: Case) -> Iterator[Finding]:
    options = case.app.conf.broker_transport_options or {}
    mine = float(options.get("visibility_timeout", TIMEOUTS[case.driver_type]))
    found: dict[float, list[str]] = defaultdict(list, {mine: [HERE]})
    for worker in case.workers:
        if worker.visibility_timeout is not None:
            found[worker.visibility_timeout].append(worker.name)
    shortest = min(found)
    if len(found) > 1 and case.driver_type == "redis":
        who = "; ".join(f"{plain(each)} s: {', '.join(found[each])}" for each in sorted(found))
        yield warning(
            "workers.visibility_timeout",
            f"different visibility timeouts: {who}",
            "On Redis every process that reads from the database returns plain messages that are "
            f"held for longer than its own timeout: the shortest, {plain(shortest)} s, holds for "
            "all plain tasks. Leases expire by their own time.",
            "Give all the same broker_transport_options['visibility_timeout'].",
        )
    elif shortest > LONG:
        yield notice(
            "workers.visibility_timeout",
            f"the visibility timeout is {plain(shortest)} s",
            "Plain messages of a dead worker wait that long. Leases do not need it.",
            "When all long tasks are leased, go back to the default: docs/migrating.md.",
        )
    else:
        yield ok(
            "workers.visibility_timeout",
            f"the visibility timeout is {plain(shortest)} s; it is for plain messages, not leases",
        )


def _clocks(case: Case) -> Iterator[Finding]:
    """Yield clocks that certainly differ from the broker's, or from this host's where it has none.

    Workers without leases cannot be asked.
    """
    reference = "the broker's" if case.broker_clock else "this host's"
    worst = ""
    for worker in case.workers:
        if worker.clock is None:
            continue
        offset = worker.clock.to(case.broker_clock) if case.broker_clock else worker.clock
        if offset.least > AGREEABLE:
            yield _skewed(case, f"the clock of {worker.name} is {offset} from {reference}")
        else:
            worst = f"{worker.name} {offset}" if not worst else f"{worst}, {worker.name} {offset}"
    if worst:
        yield ok("workers.clock", f"clocks agree with {reference}: {worst}")


def _skewed(case: Case, what: str) -> Finding:
    if case.driver_type == "amqp":
        why = "Fencing tokens are workers' clocks on RabbitMQ: those of a later delivery may be "
        why += "smaller. ETAs and expiry times of tasks are off, too."
    else:
        why = "Leases are judged by the broker's clock alone. ETAs and expiry times of tasks are "
        why += "off, and so is the sweep of plain workers on that host."
    return warning("workers.clock", what, why, "Synchronize the host's clock (chrony, NTP).")
