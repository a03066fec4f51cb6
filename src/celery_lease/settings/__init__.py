"""Resolves ``app.conf``, task options and call keywords to one frozen, validated policy."""

from __future__ import annotations

from .conf import load, means_tasks
from .error import LeaseConfigError
from .resolve import (
    Resolved,
    Settings,
    call_lease,
    check_task_options,
    covered_policy,
    task_lease,
)
from .selection import Selection
from .table import SETTINGS, Setting

__all__ = [
    "SETTINGS",
    "LeaseConfigError",
    "Resolved",
    "Selection",
    "Setting",
    "Settings",
    "call_lease",
    "check_task_options",
    "covered_policy",
    "load",
    "means_tasks",
    "task_lease",
]
