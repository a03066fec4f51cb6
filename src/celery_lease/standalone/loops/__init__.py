"""Runs several consumers in one process, each in a thread, that start and stop together.

:class:`LoopGroup` runs them; :class:`ShutdownCoordinator` stops the whole process, by a signal or
by a call. They need neither a worker nor an app. For several ``celery worker`` processes under one
parent see :mod:`celery_lease.group`.
"""

from __future__ import annotations

from .coordinator import ShutdownCoordinator
from .group import LoopGroup
from .runnable import Runnable

__all__ = ["LoopGroup", "Runnable", "ShutdownCoordinator"]
