"""Checks whether the running workers agree with each other, with this app, and with the broker."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from celery_lease.core.findings import Finding, notice, ok, warning
from celery_lease.core.words import counted, page, plain
from celery_lease.worker.telemetry.about import versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from celery_lease.cli.doctor.case import Case
    from celery_lease.cli.doctor.survey import WorkerAnswer

HERE = "this command"
#: Seconds by which clocks may differ without consequences.
AGREEABLE = 1.0
#: A visibility timeout above this was raised for long tasks; in seconds.
LONG = 6 * 3600.0


def check(case: Case, timeout: float) -> Iterator[Finding]:
    """Yield the findings about the workers that answered within *timeout* seconds."""
    if not case.can_ask:
        yield notice(
            "workers.unasked",
            "workers cannot be asked: there is no remote control here",
            "Their versions, visibility timeouts and clocks were not checked.",
        )
    elif not case.workers and not case.unasked:
        yield notice(
            "workers.none",
            f"no worker answered within {plain(timeout)} s",
            "Their versions, visibility timeouts and clocks were not checked.",
            "Start one, or give them more time by --timeout. Solo workers answer between tasks.",
        )
    elif case.workers:
        answered = counted(len(case.workers), "worker")
        yield ok("workers.answered", f"{answered} answered: {_names(case.workers)}")
        yield from _namesakes(case)
        yield from _plain(case)
        yield from _versions(case)
        yield from _settings(case)
        yield from _clocks(case)
    if case.driver.visibility_timeout is not None:
        yield from _visibility(case, case.driver.visibility_timeout)


def _names(workers: Iterable[WorkerAnswer]) -> str:
    return ", ".join(worker.name for worker in workers)


def _namesakes(case: Case) -> Iterator[Finding]:
    for worker in case.workers:
        if worker.namesakes:
            yield warning(
                "workers.names",
                f"{worker.namesakes + 1} workers are named {worker.name}",
                "Commands reach all of them, and monitors and metrics take them for one. What is "
                "said here of one of them may not hold for the others.",
                "Give each a name of its own: celery worker -n NAME@%h.",
            )


def _plain(case: Case) -> Iterator[Finding]:
    """Yield the findings about workers without leases, first those that share queues."""
    leased = [worker for worker in case.workers if worker.leased]
    shared = {queue for worker in leased for queue in worker.queues} | _sent_to(case)
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
            "They consume from no queue of this app's leased tasks or of the workers with leases.",
        )
    for worker in leased:
        if worker.about and not worker.about.get("enabled"):
            yield notice("workers.disabled", f"{worker.name} runs with lease_enabled off")


def _sent_to(case: Case) -> set[str]:
    """Return the queues that this app sends its leased tasks to."""
    route = case.app.amqp.router.route
    routes = [route({}, name).get("queue") for name in {*case.policies, *case.covered}]
    default = str(case.app.conf.task_default_queue)
    return {str(getattr(each, "name", each) or default) for each in routes}


def _versions(case: Case) -> Iterator[Finding]:
    mixed = False
    for name, here in versions().items():
        found: dict[str, list[str]] = defaultdict(list, {here: [HERE]})
        for worker in case.workers:
            if version := worker.versions.get(name):
                found[version].append(worker.name)
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
    """Yield workers whose settings differ from this app's present ones."""
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


def _visibility(case: Case, default: float) -> Iterator[Finding]:
    options = case.app.conf.broker_transport_options or {}
    mine = float(options.get("visibility_timeout", default))
    found: dict[float, list[str]] = defaultdict(list, {mine: [HERE]})
    for worker in case.workers:
        if worker.visibility_timeout is not None:
            found[worker.visibility_timeout].append(worker.name)
    shortest = min(found)
    if len(found) > 1 and case.driver.mixed_timeouts:
        who = "; ".join(f"{plain(each)} s: {', '.join(found[each])}" for each in sorted(found))
        yield warning(
            "workers.visibility_timeout",
            f"different visibility timeouts: {who}",
            case.driver.mixed_timeouts.format(shortest=plain(shortest)),
            "Give all the same broker_transport_options['visibility_timeout'].",
        )
    elif shortest > LONG:
        yield notice(
            "workers.visibility_timeout",
            f"the visibility timeout is {plain(shortest)} s",
            "Plain messages of a dead worker wait that long. Leases do not need it.",
            f"When all long tasks are leased, go back to the default: {page('migrating')}",
        )
    else:
        yield ok(
            "workers.visibility_timeout",
            f"the visibility timeout is {plain(shortest)} s; it is for plain messages, not leases",
        )


def _clocks(case: Case) -> Iterator[Finding]:
    """Yield clocks that certainly differ from the broker's, or, if it has none, from this host's.

    Workers without leases cannot be asked.
    """
    reference = "the broker's" if case.broker_clock else "this host's"
    worst = ""
    for worker in case.workers:
        if worker.clock is None:
            continue
        offset = worker.clock.to(case.broker_clock) if case.broker_clock else worker.clock
        if offset.least > AGREEABLE:
            what = f"the clock of {worker.name} is {offset} from {reference}"
            remedy = "Synchronize the host's clock (chrony, NTP)."
            yield warning("workers.clock", what, case.driver.skewed, remedy)
        else:
            worst = f"{worker.name} {offset}" if not worst else f"{worst}, {worker.name} {offset}"
    if worst:
        yield ok("workers.clock", f"clocks agree with {reference}: {worst}")
