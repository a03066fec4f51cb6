"""Resolves the settings of an app, a task and a call, and the defaults that depend on others.

The nearest of the three wins. Defaults follow the result: a call that shortens ``lease_extension``
also shortens the interval, unless the app or the task set that explicitly; then the call is at
fault if the two contradict each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from celery_lease.core.faults import Fault
from celery_lease.core.policy import LeasePolicy, Mode
from celery_lease.core.words import plain

from .error import LeaseConfigError
from .selection import NONE, Selection
from .table import BY_NAME, PREFIX, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_POLICY = tuple(each.name for each in fields(LeasePolicy))
TASK, CALL = "task", "call"  #: the places of options, named as in :class:`.table.Setting`
_OWNERS = {TASK: "the app", CALL: "the app or the task"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The settings for one task or one call. Durations are in seconds."""

    enabled: bool
    policy: LeasePolicy  #: for an app: that of a task without options of its own
    explicit: Mapping[str, object] = field(default_factory=dict, hash=False)
    """What app, task and call set on purpose, by setting name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Resolved):
    """The settings of an app."""

    reaper_interval: float
    dead_letter_queue: str  #: with ``{queue}``, see :meth:`dead_letter_queue_of`
    health_host: str
    health_port: int | None
    tasks: Selection = NONE  #: the undecorated tasks that get leases
    publish_progress: float | None = None  #: least time between two publications of one task
    warnings: tuple[str, ...] = ()  #: allowed but unlikely values, one line each

    def dead_letter_queue_of(self, queue: str) -> str:
        return self.dead_letter_queue.replace("{queue}", queue)

    def reaper_interval_for(self, extensions: Iterable[float]) -> float:
        """Return the seconds between sweeps if tasks have these *extensions* of their own."""
        shortest = min([self.policy.extension, *extensions])
        interval: Any = BY_NAME["lease_reaper_interval"].value(self.explicit, shortest)
        return float(interval)


def values_of(explicit: Mapping[str, object]) -> dict[str, Any]:
    """Return the values of the fields of :class:`Settings`, from explicit values without faults."""
    extension: Any = BY_NAME["lease_extension"].value(explicit, 0)
    values: dict[str, Any] = {each.field: each.value(explicit, extension) for each in SETTINGS}
    policy = LeasePolicy(**{name: values.pop(name) for name in _POLICY})
    return {**values, "policy": policy, "explicit": explicit}


def faults_of(explicit: Mapping[str, object]) -> list[Fault]:
    """Return every rule that explicit values break, by themselves or together."""
    checked = {
        name: BY_NAME[name].accepted.fault(name, value, BY_NAME[name].default)
        for name, value in explicit.items()
    }
    wrong = [fault for fault in checked.values() if fault]
    if checked.get("lease_extension"):
        return wrong  # every relation would only repeat that the extension is wrong
    sound = {name: value for name, value in explicit.items() if not checked[name]}
    return wrong + list(_relations(sound))


def _relations(sound: Mapping[str, object]) -> Iterator[Fault]:
    """Yield the rules between values that are broken, each value being right by itself.

    Defaults follow the extension and break no rule.
    """
    values = values_of(sound)
    policy: LeasePolicy = values["policy"]
    extension = plain(policy.extension)
    if not policy.interval < policy.extension / 2:
        yield Fault(
            "lease_interval",
            sound["lease_interval"],
            f"must be less than half of lease_extension ({extension})",
            f"set lease_interval to {plain(policy.extension / 5)}, "
            f"or lease_extension to {plain(policy.interval * 5)}",
        )
    if not policy.shutdown_timeout <= policy.extension:
        yield Fault(
            "lease_shutdown_timeout",
            sound["lease_shutdown_timeout"],
            f"must be at most lease_extension ({extension}), "
            "or leases could end while the worker waits for their tasks",
            "lower lease_shutdown_timeout or raise lease_extension",
        )
    if not values["reaper_interval"] < policy.extension:
        yield Fault(
            "lease_reaper_interval",
            sound["lease_reaper_interval"],
            f"must be less than lease_extension ({extension})",
            "lower lease_reaper_interval or raise lease_extension",
        )


def task_lease(settings: Settings, options: Mapping[str, object], task: str = "") -> Resolved:
    """Return the settings for a task with *options* of its own.

    Raises:
        LeaseConfigError: An option is unknown, wrong, or in conflict with the app's settings.
    """
    return _overlay(settings, options, TASK, f"task {task!r}")


def covered_policy(resolved: Resolved, own: Mapping[str, object]) -> LeasePolicy:
    """Return the policy of an undecorated task, for which *resolved* holds.

    Its code cannot beat, so its life is proof enough, unless the app observes; and Celery neither
    ends it nor stops waiting for it by itself, so only limits that somebody set hold for it.

    Args:
        resolved: What app, task and call set.
        own: What task and call set.
    """
    policy, explicit = resolved.policy, resolved.explicit
    if "lease_mode" not in own and policy.mode is not Mode.OBSERVE:
        policy = replace(policy, mode=Mode.DAEMON)
    if "lease_max_duration" not in explicit:
        policy = replace(policy, max_duration=math.inf)
    if "lease_shutdown_timeout" not in explicit:
        policy = replace(policy, shutdown_timeout=math.inf)
    return policy


def call_lease(base: Resolved, overrides: Mapping[str, object], task: str = "") -> Resolved:
    """Return the settings for one call of a task; *base*, the task's, if the call sets nothing.

    Raises:
        LeaseConfigError: A value is unknown, wrong, or in conflict with *base*.
    """
    return _overlay(base, overrides, CALL, f"call of task {task!r}")


def _overlay(base: Resolved, options: Mapping[str, object], scope: str, origin: str) -> Resolved:
    if not options:
        return base
    names = _names(scope)
    placed = {name: value for name, value in options.items() if name in names}
    merged = {**base.explicit, **placed}
    if faults := [*_name_faults(options, scope), *faults_of(merged)]:
        # Name the source of a fault's value if it is not the one that gets the error.
        shown = (
            fault
            if fault.name in options
            else replace(fault, hint=f"{fault.hint} ({fault.name} is set by {_OWNERS[scope]})")
            for fault in faults
        )
        raise LeaseConfigError(tuple(shown), origin)
    values = values_of(merged)
    return Resolved(enabled=values["enabled"], policy=values["policy"], explicit=merged)


def check_task_options(options: Mapping[str, object], task: str) -> None:
    """Check a task's options as far as possible before its app is known.

    Raises:
        LeaseConfigError: A name is unknown, or a value is wrong with any settings of the app.
    """
    known = [BY_NAME[name] for name in options if name in BY_NAME]
    checked = [each.accepted.fault(each.name, options[each.name], each.default) for each in known]
    if faults := [*_name_faults(options, TASK), *filter(None, checked)]:
        raise LeaseConfigError(tuple(faults), f"task {task!r}")


def _names(scope: str) -> list[str]:
    return [each.name for each in SETTINGS if getattr(each, scope)]


def _name_faults(values: Mapping[str, object], scope: str) -> list[Fault]:
    """Return the faults of names that are unknown, or not allowed in this place."""
    names = _names(scope)
    faults = []
    for name, value in values.items():
        if name not in BY_NAME:
            faults.append(unknown(name, value, names))
        elif name not in names:
            where = _OWNERS[CALL] if BY_NAME[name].task else _OWNERS[TASK]
            rule = f"is a setting of {where}, not of a {scope}"
            faults.append(Fault(name, value, rule, f"set it for {where}, or leave it out"))
    return faults


def not_of_app(name: str, value: object) -> Fault:
    """Return the fault of an app that sets what only a task or a call can."""
    return Fault(name, value, "is an option of a task or a call, not of the app", "set it there")


def unknown(name: str, value: object, known: Iterable[str]) -> Fault:
    """Return the fault of an unknown name, with the nearest one of *known*."""
    # All names share their prefix, by which any two of them would look alike.
    tails = {_tail(candidate): candidate for candidate in known}
    near = get_close_matches(_tail(name), tails, n=1, cutoff=0.55)
    hint = f"did you mean {tails[near[0]]}?" if near else f"known are {', '.join(tails.values())}"
    return Fault(name, value, "is not a lease setting", hint)


def _tail(name: str) -> str:
    return name.lower().partition(PREFIX)[2]
