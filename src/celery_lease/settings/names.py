"""Which names are settings, and what somebody meant who wrote another one."""

from __future__ import annotations

from difflib import get_close_matches
from enum import Enum
from typing import TYPE_CHECKING

from celery_lease.core.policy import PREFIX, Fault

from .table import BY_NAME, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Scope(Enum):
    """Where a value was given."""

    APP = "the app"
    TASK = "a task"
    CALL = "a call"

    def names(self) -> list[str]:
        """Return the settings that can be given here."""
        return [setting.name for setting in SETTINGS if self.takes(setting.name)]

    def takes(self, name: str) -> bool:
        """Tell whether the known setting *name* can be given here."""
        setting = BY_NAME[name]
        return {Scope.APP: True, Scope.TASK: setting.task, Scope.CALL: setting.call}[self]


def name_faults(values: Mapping[str, object], scope: Scope) -> list[Fault]:
    """Return the faults of names that are unknown, or known but not to be given here."""
    return [
        misplaced(name, value, scope) if name in BY_NAME else unknown(name, value, scope.names())
        for name, value in values.items()
        if name not in BY_NAME or not scope.takes(name)
    ]


def misplaced(name: str, value: object, scope: Scope) -> Fault:
    """Return the fault of a setting that is given where it is not read."""
    where = "the app or the task" if BY_NAME[name].task else "the app"
    return Fault(
        name,
        value,
        f"is a setting of {where}, not of {scope.value}",
        f"set it for {where}, or leave it out",
    )


def unknown(name: str, value: object, known: Iterable[str]) -> Fault:
    """Return the fault of a name that is no setting, with the nearest one of *known*."""
    names = list(known)
    near = nearest(name, names)
    hint = f"did you mean {near}?" if near else f"known are {', '.join(names)}"
    return Fault(name, value, "is not a lease setting", hint)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of *known* that *name* most likely means, whatever its case."""
    # All names share their prefix, which would make any two of them look alike.
    tails = {_tail(candidate): candidate for candidate in known}
    found = get_close_matches(_tail(name), tails, n=1, cutoff=0.55)
    return tails[found[0]] if found else None


def _tail(name: str) -> str:
    return name.lower().partition(PREFIX)[2]
