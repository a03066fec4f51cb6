"""App, task and call each may set a value; the nearest one wins and what nobody set follows.

Scaling looks at the outcome: a call that shortens ``lease_extension`` also shortens the interval,
unless the app or the task set that on purpose; then the call is at fault when the two disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from celery_lease.core.policy import faults_of, policy_from, reaper_fault

from .error import LeaseConfigError
from .names import Scope, name_faults
from .table import BY_NAME, OF_LEASE, REAPER_INTERVAL, of_lease

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from celery_lease.core.policy import Fault, LeasePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What holds for one task or one call."""

    enabled: bool
    policy: LeasePolicy
    explicit: Mapping[str, object] = field(default_factory=dict, hash=False)
    """What app, task and call set on purpose, by setting name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What holds for an app. Durations are in seconds."""

    enabled: bool
    policy: LeasePolicy  #: of a task that sets nothing itself
    explicit: Mapping[str, object] = field(default_factory=dict, hash=False)
    """What the app sets on purpose, by setting name."""
    reaper_interval: float
    dead_letter_queue: str  #: with ``{queue}``, see :meth:`dead_letter_queue_of`
    health_host: str
    health_port: int | None
    publish_progress: float | None = None  #: least time between two publications of one task
    warnings: tuple[str, ...] = ()  #: what is allowed and likely not meant, a line each

    def dead_letter_queue_of(self, queue: str) -> str:
        """Return where the dead letters of *queue* go."""
        return self.dead_letter_queue.replace("{queue}", queue)

    def reaper_interval_for(self, extensions: Iterable[float]) -> float:
        """Return the seconds between sweeps when tasks have these *extensions* of their own."""
        if "lease_reaper_interval" in self.explicit:
            return self.reaper_interval
        return reaper_interval(min([self.policy.extension, *extensions]))


def reaper_interval(extension: float) -> float:
    """Return the seconds between sweeps that follow an extension, where nobody set them."""
    return min(REAPER_INTERVAL, extension / 3)


def task_lease(settings: Settings, options: Mapping[str, object], task: str = "") -> Resolved:
    """Return what holds for a task.

    Args:
        settings: The app's.
        options: The ``lease_*`` options that the task sets itself, by setting name.
        task: The task's name, for errors.

    Raises:
        LeaseConfigError: An option is unknown, wrong, or in conflict with the app's settings.
    """
    app = Resolved(enabled=settings.enabled, policy=settings.policy, explicit=settings.explicit)
    return _overlay(app, options, Scope.TASK, f"task {task!r}") if options else app


def call_lease(base: Resolved, overrides: Mapping[str, object], task: str = "") -> Resolved:
    """Return what holds for one call of a task; *base* itself when the call sets nothing.

    Args:
        base: What holds for the task, see :func:`task_lease`; worth keeping between calls.
        overrides: The ``lease_*`` keywords of the call, by setting name.
        task: The task's name, for errors.

    Raises:
        LeaseConfigError: A value is unknown, wrong, or in conflict with what *base* sets.
    """
    return _overlay(base, overrides, Scope.CALL, f"call of task {task!r}") if overrides else base


def _overlay(base: Resolved, options: Mapping[str, object], scope: Scope, origin: str) -> Resolved:
    known = {name: value for name, value in options.items() if name in BY_NAME}
    placed = {name: value for name, value in known.items() if scope.takes(name)}
    merged = {**base.explicit, **placed}
    faults = [*name_faults(options, scope), *value_faults(merged)]
    if faults:
        told = tuple(_owned(fault, options, scope) for fault in faults)
        raise LeaseConfigError(told, origin)
    enabled = bool(placed.get("lease_enabled", base.enabled))
    return Resolved(enabled=enabled, policy=policy_from(of_lease(merged)), explicit=merged)


def _owned(fault: Fault, options: Mapping[str, object], scope: Scope) -> Fault:
    """Say who set the value of *fault* where it was not the one who gets the error."""
    if fault.name in options:
        return fault
    owner = "the app" if scope is Scope.TASK else "the app or the task"
    return replace(fault, hint=f"{fault.hint} ({fault.name} is set by {owner})")


def value_faults(values: Mapping[str, object]) -> list[Fault]:
    """Return the faults of the values of known settings, and of their relations."""
    others = [
        BY_NAME[name].accepted.fault(name, value, BY_NAME[name].default)
        for name, value in values.items()
        if name not in OF_LEASE
    ]
    if "lease_reaper_interval" in values:
        extension = values.get("lease_extension", BY_NAME["lease_extension"].default)
        others.append(reaper_fault(values["lease_reaper_interval"], extension))
    return [*faults_of(of_lease(values)), *filter(None, others)]


def check_task_options(options: Mapping[str, object], task: str) -> None:
    """Check what can be checked of a task's options before its app is known.

    Raises:
        LeaseConfigError: A name is unknown, or a value wrong whatever the app's settings are.
    """
    faults = name_faults(options, Scope.TASK)
    known = {name: BY_NAME[name] for name in options if name in BY_NAME}
    for name, setting in known.items():
        fault = setting.accepted.fault(name, options[name], setting.default)
        faults += [fault] if fault else []
    if faults:
        raise LeaseConfigError(tuple(faults), f"task {task!r}")
