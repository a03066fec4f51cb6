"""From ``app.conf``, task options and call keywords to one frozen, validated policy."""

from __future__ import annotations

from .conf import load
from .error import LeaseConfigError
from .layers import Resolved, Settings, call_lease, check_task_options, task_lease
from .table import SETTINGS, Setting, reference

__all__ = [
    "SETTINGS",
    "LeaseConfigError",
    "Resolved",
    "Setting",
    "Settings",
    "call_lease",
    "check_task_options",
    "load",
    "reference",
    "task_lease",
]
