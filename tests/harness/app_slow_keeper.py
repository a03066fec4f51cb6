"""The tasks of :mod:`.app_leased`, in a worker whose keeper is slow between a kill and its wake.

The main loop learns of the process's end first, as it may on a busy machine.
"""

from __future__ import annotations

import time
from typing import Any

from celery_lease.worker import pools
from harness.app_leased import app

__all__ = ["app"]

#: Seconds in which a main loop that turns has handled the end of a process.
LATE = 1.0

prefork: Any = pools.prefork
is_gone = prefork.is_gone


def is_gone_and_handled(pid: int, within: float) -> bool:
    """Return whether a process is gone, so late that the main loop knows it, too."""
    gone = bool(is_gone(pid, within))
    time.sleep(LATE)
    return gone


prefork.is_gone = is_gone_and_handled
