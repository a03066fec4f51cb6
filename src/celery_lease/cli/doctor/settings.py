"""Checks the settings by their rules, and Celery's own settings for conflicts with leases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from celery.backends.base import DisabledBackend

from celery_lease.cli.broker import ESCAPE, MISREAD
from celery_lease.core.findings import Finding, error, notice, ok, warning
from celery_lease.core.policy import warnings_of
from celery_lease.core.secrets import is_misread
from celery_lease.core.words import counted, page, plain, sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery import Celery

    from celery_lease.cli.doctor.case import Case
    from celery_lease.settings import LeaseConfigError, Settings

REFERENCE = f"What each setting takes: {page('settings')}"


def check_errors(errors: Sequence[LeaseConfigError]) -> Iterator[Finding]:
    """Yield the findings about wrong settings and task options."""
    for each in errors:
        for fault in each.faults:
            yield error(
                "settings.rule",
                f"{each.origin}: {replace(fault, hint='')}",
                "A worker with leased tasks does not start with it.",
                sentence(fault.hint) or REFERENCE,
            )


def check(case: Case) -> Iterator[Finding]:
    """Yield the findings about settings without errors."""
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
    elif case.refused:
        return  # reported already: neither "every rule holds" nor "no leased task" is true
    elif not case.policies and not case.covered:
        yield warning(
            "settings.tasks",
            "this app has no leased task",
            "Workers of this app take no leases at all. Only what the app imports is seen here.",
            "Decorate the long tasks with @leased_task, or set lease_tasks, and list their modules "
            "in `imports`.",
        )
    else:
        policy = loaded.policy
        yield ok(
            "settings.rules",
            f"{_tasks(case)}; "
            f"lease_extension {plain(policy.extension)} s, "
            f"interval {plain(policy.interval)} s, shutdown timeout "
            f"{plain(policy.shutdown_timeout)} s: every rule holds",
        )


def _tasks(case: Case) -> str:
    text = counted(len(case.policies), "leased task")
    return f"{text}, {len(case.covered)} more by lease_tasks" if case.covered else text


def _senseless(case: Case, loaded: Settings) -> Iterator[Finding]:
    """Yield warnings about values that are allowed but unlikely."""
    for line in loaded.warnings:
        yield _warned("the app", line)
    for name, policy in case.policies.items():
        for line in warnings_of(policy):
            if line not in loaded.warnings:
                yield _warned(f"task {name}", line)


def _warned(origin: str, line: str) -> Finding:
    what, _, rest = line.partition(": ")
    why, _, remedy = rest.partition("; ")
    what = f"{origin}: {what}"
    return warning("settings.sense", what, sentence(why), sentence(remedy) or REFERENCE)


def _backend(case: Case) -> Finding:
    if is_misread(str(case.app.conf.result_backend or "")):
        why = "A worker does not start with it, or stores results at another host."
        return error("settings.backend", f"result_backend {MISREAD}", why, f"{ESCAPE}.")
    if not isinstance(case.app.backend, DisabledBackend):
        return ok("settings.backend", f"results go to {type(case.app.backend).__name__}")
    if case.driver.capabilities.checkpoints:
        why = "checkpoints are kept in the broker's database"
    else:
        why = "context.checkpoint() and context.iterate() raise CheckpointError"
    return notice(
        "settings.backend",
        "no result backend",
        f"Nobody sees results or states, and {why}.",
        "Set result_backend if results or checkpoints matter.",
    )


def _celery(case: Case) -> Iterator[Finding]:
    app: Celery = case.app
    cancels = app.conf.worker_cancel_long_running_tasks_on_connection_loss
    if cancels and (case.policies or case.covered) and case.driver.capabilities.outlives:
        yield warning(
            "settings.cancels",
            "worker_cancel_long_running_tasks_on_connection_loss is on",
            "Celery ends late-ack tasks when the broker's connection is lost, although their "
            "leases outlive it here.",
            "Remove it: if a lease is lost meanwhile, the next beat raises LeaseLost.",
        )
    if app.conf.worker_prefetch_multiplier == 0:
        yield warning(
            "settings.prefetch",
            "worker_prefetch_multiplier is 0, which means no limit",
            "The first worker takes all messages there are, and holds a lease for each of them.",
            "Set it to 1 for long tasks.",
        )
    if not app.conf.worker_enable_remote_control and not case.driver.unaskable:
        yield notice(
            "settings.remote_control",
            "worker_enable_remote_control is off",
            "Workers answer no command: neither this one nor drain, status or cancel.",
            "Switch it on, or accept that workers can only be watched by their logs.",
        )
