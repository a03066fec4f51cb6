"""The description of one process of a group."""

from __future__ import annotations

from dataclasses import dataclass

#: The environment variable with a worker's name in the group, also for its ``celeryconfig``.
NAME_VARIABLE = "LEASE_GROUP_MEMBER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One process of a group."""

    name: str
    command: tuple[str, ...]  #: the first is the path of a program
    priority: int = 0  #: lower ones are stopped first, equal ones at the same time
