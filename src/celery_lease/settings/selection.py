"""Which undecorated tasks get leases: what ``lease_tasks`` says, by their names."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from celery_lease.core.faults import Accepted

if TYPE_CHECKING:
    from collections.abc import Iterable

#: No task but the decorated ones, and every task.
DECORATED, ALL = "decorated", "all"
#: Begins a pattern that excludes.
NOT = "!"


@dataclass(frozen=True, slots=True)
class Selection:
    """Names that match a pattern, and none of those that exclude."""

    patterns: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether it may select anything."""
        return bool(self.patterns)

    def selects(self, name: str) -> bool:
        """Whether the undecorated task of that name gets a lease."""
        return _any(name, self.patterns) and not _any(name, self.excluded)

    def idle(self, names: Iterable[str]) -> list[str]:
        """Return the patterns that match none of *names*, as they were written."""
        known = list(names)
        written = [*self.patterns, *(NOT + each for each in self.excluded)]
        return [
            each
            for each in written
            if not any(fnmatchcase(name, each.removeprefix(NOT)) for name in known)
        ]


#: What selects nothing.
NONE = Selection()


def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, each) for each in patterns)


def _admits(value: object) -> bool:
    if isinstance(value, str):
        return value in (DECORATED, ALL)
    if not isinstance(value, (list, tuple, set, frozenset)):
        return False
    patterns = list(value)
    sound = all(isinstance(each, str) and each.removeprefix(NOT).strip() for each in patterns)
    return sound and any(not each.startswith(NOT) for each in patterns)


def _convert(value: Any) -> Selection:
    if value == DECORATED:
        return NONE
    if value == ALL:
        return Selection(("*",))
    patterns = sorted(value) if isinstance(value, (set, frozenset)) else list(value)
    return Selection(
        tuple(each for each in patterns if not each.startswith(NOT)),
        tuple(each.removeprefix(NOT) for each in patterns if each.startswith(NOT)),
    )


SELECTION = Accepted(
    "'decorated', 'all' or a list of name patterns, of which one at least does not begin with '!'",
    _admits,
    _convert,
    choices=(DECORATED, ALL),
    unquoted=False,
)
