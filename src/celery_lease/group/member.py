"""What one process of a group is."""

from __future__ import annotations

from dataclasses import dataclass

#: The environment variable that tells a worker, and so its ``celeryconfig``, its name in the group.
NAME_VARIABLE = "LEASE_GROUP_MEMBER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One process of a group."""

    name: str
    command: tuple[str, ...]  #: the first is the path of a program
    priority: int = 0  #: lower ones are stopped first; equal ones at the same time
