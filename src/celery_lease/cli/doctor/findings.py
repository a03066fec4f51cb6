"""What a check says: how bad it is, what was seen, why it matters, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is, from good to bad."""

    OK = "ok"  #: as it should be
    NOTICE = "notice"  #: worth knowing; could not be checked; or a price that is paid on purpose
    WARNING = "warning"  #: will hurt some day; ends ``--strict`` with 1
    ERROR = "error"  #: does not work, or loses messages; ends the command with 1

    @property
    def rank(self) -> int:
        """The place in that order."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one check on one thing."""

    check: str  #: names the check, ``redis.eviction``; stable, for machines
    severity: Severity
    what: str  #: what was seen, in one line
    why: str = ""  #: what comes of it
    remedy: str = ""  #: what to do


def ok(check: str, what: str) -> Finding:
    """Return that something is as it should be."""
    return Finding(check=check, severity=Severity.OK, what=what)


def notice(check: str, what: str, why: str = "", remedy: str = "") -> Finding:
    """Return what is worth knowing."""
    return Finding(check=check, severity=Severity.NOTICE, what=what, why=why, remedy=remedy)


def warning(check: str, what: str, why: str, remedy: str) -> Finding:
    """Return what will hurt some day."""
    return Finding(check=check, severity=Severity.WARNING, what=what, why=why, remedy=remedy)


def error(check: str, what: str, why: str, remedy: str) -> Finding:
    """Return what does not work."""
    return Finding(check=check, severity=Severity.ERROR, what=what, why=why, remedy=remedy)
