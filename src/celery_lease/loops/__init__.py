"""Several consumers in one process, each in a thread, that start and stop as one.

:class:`LoopGroup` runs them; :class:`ShutdownCoordinator` tells the whole process to stop, by a
signal or by a call. Nothing here needs a worker or an app. For several ``celery worker`` processes
under one parent see :mod:`celery_lease.group`.
"""

from __future__ import annotations

from .coordinator import ShutdownCoordinator
from .group import LoopGroup
from .runnable import Runnable

__all__ = ["LoopGroup", "Runnable", "ShutdownCoordinator"]
