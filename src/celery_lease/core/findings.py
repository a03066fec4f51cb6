"""The result of a check: its severity, the observation, the consequence, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from celery_lease.core.offset import Offset
    from celery_lease.core.policy import LeasePolicy


class Severity(StrEnum):
    """The severity of a finding, from good to bad."""

    OK = "ok"  #: correct
    NOTICE = "notice"  #: worth knowing; not checkable; or a deliberate trade-off
    WARNING = "warning"  #: may cause harm later; ends ``--strict`` with 1
    ERROR = "error"  #: does not work, or loses messages; ends the command with 1

    @property
    def rank(self) -> int:
        """The position in that order."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one check on one thing."""

    check: str  #: the check's name, such as ``redis.eviction``; stable, for machines
    severity: Severity
    what: str  #: the observation, in one line
    why: str = ""  #: the consequence
    remedy: str = ""  #: the remedy


class Examined(Protocol):
    """An app and its broker, for the checks of a driver."""

    @property
    def app(self) -> Any:
        """The Celery app."""

    @property
    def loaded(self) -> Any:
        """The app's settings; None: they are wrong."""

    @property
    def channel(self) -> Any:
        """A live kombu channel."""

    @property
    def queues(self) -> Sequence[str]:
        """The queues that this app, or a worker that answered, consumes from."""

    @property
    def policies(self) -> Mapping[str, LeasePolicy]:
        """The policies of the app's leased tasks, by name."""

    @property
    def leases(self) -> Sequence[LeasePolicy]:
        """The policies of leased tasks, or the app's own policy if no task is known."""

    @property
    def longest(self) -> float:
        """The longest that a lease may be held, in seconds; 0: unknown."""

    @property
    def shortest_extension(self) -> float:
        """The shortest ``lease_extension``, in seconds; 0: unknown."""

    @property
    def plain_tasks(self) -> Mapping[str, Any]:
        """The app's tasks without a lease, by name."""

    def lacking(self, *, by_hand: bool = False) -> Sequence[tuple[str, str]]:
        """Return the missing permissions at broker and result backend, each with a remedy."""


class Doctor(Protocol):
    """The checks of a broker; a module can implement it."""

    def check(self, case: Examined) -> Iterable[Finding]:
        """Yield the findings about the broker, without changing it."""

    def clock(self, case: Examined) -> Offset | None:
        """Return the difference between the broker's clock and this host's; None: unknown."""


def ok(check: str, what: str) -> Finding:
    """Return a finding that something is correct."""
    return Finding(check=check, severity=Severity.OK, what=what)


def notice(check: str, what: str, why: str = "", remedy: str = "") -> Finding:
    """Return a finding that is worth knowing."""
    return Finding(check=check, severity=Severity.NOTICE, what=what, why=why, remedy=remedy)


def warning(check: str, what: str, why: str, remedy: str) -> Finding:
    """Return a finding about possible harm."""
    return Finding(check=check, severity=Severity.WARNING, what=what, why=why, remedy=remedy)


def error(check: str, what: str, why: str, remedy: str) -> Finding:
    """Return a finding about an error."""
    return Finding(check=check, severity=Severity.ERROR, what=what, why=why, remedy=remedy)
