"""Whether the settings obey their rules, and whether Celery's own ones undo what leases do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.backends.base import DisabledBackend

from celery_lease.cli.doctor.findings import Finding, error, notice, ok, warning
from celery_lease.core.policy import plain, warnings_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery import Celery

    from celery_lease.cli.doctor.case import Case
    from celery_lease.settings import LeaseConfigError, Settings

REFERENCE = "docs/settings.md has what each setting takes"


def check_errors(errors: Sequence[LeaseConfigError]) -> Iterator[Finding]:
    """Yield what is wrong with settings and task options."""
    for each in errors:
        for fault in each.faults:
            yield error(
                "settings.rule",
                f"{each.origin}: {fault}",
                "A worker with leased tasks does not start with it.",
                fault.hint or REFERENCE,
            )


def check(case: Case) -> Iterator[Finding]:
    """Yield what sound settings mean."""
    if case.loaded is not None:
        yield from _leases(case, case.loaded)
        yield from _senseless(case, case.loaded)
    yield _backend(case)
    yield from _celery(case)


def _leases(case: Case, loaded: Settings) -> Iterator[Finding]:
    if not loaded.enabled:
        yield warning(
            "settings.enabled",
            "lease_enabled is off",
            "Leased tasks run as plain late-ack tasks: nothing keeps or fences their messages.",
            "Remove it from the configuration when leases are wanted.",
        )
    elif not case.policies:
        yield warning(
            "settings.tasks",
            "this app has no leased task",
            "Workers of this app take no leases at all. Only what the app imports is seen here.",
            "Decorate the long tasks with @leased_task, and list their modules in `imports`.",
        )
    else:
        policy = loaded.policy
        yield ok(
            "settings.rules",
            f"{len(case.policies)} leased tasks; lease_extension {plain(policy.extension)} s, "
            f"interval {plain(policy.interval)} s, shutdown timeout "
            f"{plain(policy.shutdown_timeout)} s: every rule holds",
        )


def _senseless(case: Case, loaded: Settings) -> Iterator[Finding]:
    """Yield what is allowed and likely not meant."""
    for line in loaded.warnings:
        yield _warned("the app", line)
    for name, policy in case.policies.items():
        for line in warnings_of(policy):
            if line not in loaded.warnings:
                yield _warned(f"task {name}", line)


def _warned(origin: str, line: str) -> Finding:
    what, _, rest = line.partition(": ")
    why, _, remedy = rest.partition("; ")
    return warning("settings.sense", f"{origin}: {what}", why, remedy or REFERENCE)


def _backend(case: Case) -> Finding:
    if not isinstance(case.app.backend, DisabledBackend):
        return ok("settings.backend", f"results go to {type(case.app.backend).__name__}")
    if case.driver_type == "redis":
        why = "checkpoints are kept in the broker's database"
    else:
        why = "context.checkpoint() raises CheckpointError"
    return notice(
        "settings.backend",
        "no result backend",
        f"Nobody sees results or states, and {why}.",
        "Set result_backend if results or checkpoints matter.",
    )


def _celery(case: Case) -> Iterator[Finding]:
    app: Celery = case.app
    cancels = app.conf.worker_cancel_long_running_tasks_on_connection_loss
    if cancels and case.policies and case.driver_type != "amqp":
        yield warning(
            "settings.cancels",
            "worker_cancel_long_running_tasks_on_connection_loss is on",
            "Celery ends late-ack tasks when the broker's connection is lost, although their "
            "leases outlive it here.",
            "Remove it: a task whose lease is lost meanwhile is told at its next beat.",
        )
    if app.conf.worker_prefetch_multiplier == 0:
        yield warning(
            "settings.prefetch",
            "worker_prefetch_multiplier is 0, which means no limit",
            "The first worker takes all messages there are, and holds a lease for each of them.",
            "Set it to 1 for long tasks.",
        )
    if not app.conf.worker_enable_remote_control:
        yield notice(
            "settings.remote_control",
            "worker_enable_remote_control is off",
            "Workers answer no command: neither this one nor drain, status or cancel.",
            "Switch it on, or accept that workers can only be watched by their logs.",
        )
