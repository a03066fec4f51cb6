"""The error that stops a worker, a task's declaration or a call with wrong lease settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.exceptions import ImproperlyConfigured

from celery_lease.core.errors import LeaseError

if TYPE_CHECKING:
    from celery_lease.core.faults import Fault


class LeaseConfigError(LeaseError, ImproperlyConfigured):
    """Lease settings break a rule; correct them, retrying does not help.

    Attributes:
        faults: Every broken rule, not only the first.
        origin: The source of the values: ``the app``, ``task 'name'`` or ``call of task 'name'``.
    """

    def __init__(self, faults: tuple[Fault, ...] = (), origin: str = "the app") -> None:
        super().__init__(faults, origin)
        self.faults = tuple(faults)
        self.origin = origin

    def __str__(self) -> str:
        """Return one line for a single fault, else a headline and one line for each."""
        if len(self.faults) == 1:
            return f"wrong lease setting of {self.origin}: {self.faults[0]}"
        lines = [f"{len(self.faults)} wrong lease settings of {self.origin}:"]
        return "\n  ".join([*lines, *map(str, self.faults)])
