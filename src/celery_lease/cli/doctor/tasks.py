"""Checks whether leased tasks can beat, from their code and from the workers.

Code that neither takes a context nor asks for the current one may still call a function that does,
so a finding is a warning and not an error.
"""

from __future__ import annotations

import dis
import inspect
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

from celery_lease.cli.doctor.case import Case, leased_tasks
from celery_lease.core.findings import Finding, notice, ok, warning
from celery_lease.core.policy import LeasePolicy, Mode
from celery_lease.core.words import plain
from celery_lease.task.current import current_context
from celery_lease.task.injection import Injection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_lease.task.task import LeasedTask

REMEDY = (
    "Beat: take `context: ToolContext` and call context.beat() or context.track(), or set "
    'lease_mode="daemon" for code that cannot beat.'
)


def check(case: Case) -> Iterator[Finding]:
    """Yield the findings about tasks that do not beat."""
    judged = {
        name: reason
        for name, task in sorted(leased_tasks(case.app).items())
        if (policy := case.policies.get(name)) and (reason := why_silent(task, policy))
    }
    for name, reason in judged.items():
        policy = case.policies[name]
        observed = "in heartbeat mode " if policy.mode is Mode.OBSERVE else ""
        yield warning(
            "tasks.silent",
            f"task {name} {reason}",
            f"Unless code that it calls beats, {observed}its lease is lost "
            f"{plain(policy.extension)} s after it began, and it is run again elsewhere.",
            REMEDY,
        )
    if case.policies and not judged:
        yield ok("tasks.silent", "every leased task takes a context, asks for it, or need not beat")


def why_silent(task: LeasedTask, policy: LeasePolicy) -> str:
    """Return the reason why a task's own code cannot beat, or an empty string."""
    function = inspect.unwrap(type(task).run)
    if policy.mode is Mode.DAEMON or not isinstance(function, FunctionType):
        return ""
    if _asks_for_context(function):
        return ""
    name = Injection.of(function, skip_first=False).name
    if name is None:
        return "takes no context, and does not call current_context()"
    return "" if _uses(function.__code__, name) else f"takes {name} and never uses it"


def _asks_for_context(function: FunctionType) -> bool:
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    known = function.__globals__
    return "current_context" in names or any(known.get(n) is current_context for n in names)


def _uses(code: CodeType, name: str) -> bool:
    return any(
        each.opname.startswith("LOAD_")
        # Since 3.13 one instruction loads two variables.
        and name in (each.argval if isinstance(each.argval, tuple) else (each.argval,))
        for inner in _codes(code)
        for each in dis.get_instructions(inner)
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and the code of its inner functions."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def check_seen(case: Case) -> Iterator[Finding]:
    """Yield the findings of the workers about tasks since their start."""
    for worker in case.workers:
        for name in worker.about.get("silent", ()):
            yield notice(
                "tasks.slow",
                f"task {name} went without a beat for half of its lease on {worker.name}",
                "Without a beat for the other half it would have lost its lease.",
                "Beat more often, raise lease_extension, or use context.quiet() around the one "
                "long call.",
            )
