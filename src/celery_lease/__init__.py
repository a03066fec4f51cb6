"""Leases for long Celery tasks: neither run twice nor lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from .core.errors import (
        AlreadyAttached,
        LeaseError,
        LeaseLost,
        ReceiptHandleExpiredError,
        ShutdownRequested,
        TaskCancelled,
        TooManyDeliveries,
        UnsupportedBroker,
        UnsupportedOperation,
    )
    from .core.heartbeat import Heartbeat
    from .installation import install
    from .settings import LeaseConfigError
    from .standalone.consumer import lease_consumer
    from .standalone.extender import LeaseExtender, LeaseExtenderConfig
    from .standalone.loops import LoopGroup, Runnable, ShutdownCoordinator
    from .task.checkpoints.errors import CheckpointError
    from .task.context import ToolContext
    from .task.current import current_context
    from .task.decorator import leased_task
    from .task.task import LeasedTask
    from .worker.request import LeasedRequest

__all__ = [
    "AlreadyAttached",
    "CheckpointError",
    "Heartbeat",
    "LeaseConfigError",
    "LeaseError",
    "LeaseExtender",
    "LeaseExtenderConfig",
    "LeaseLost",
    "LeasedRequest",
    "LeasedTask",
    "LoopGroup",
    "ReceiptHandleExpiredError",
    "Runnable",
    "ShutdownCoordinator",
    "ShutdownRequested",
    "TaskCancelled",
    "TooManyDeliveries",
    "ToolContext",
    "UnsupportedBroker",
    "UnsupportedOperation",
    "current_context",
    "install",
    "lease_consumer",
    "leased_task",
]

_HOMES = {
    "CheckpointError": "task.checkpoints.errors",
    "Heartbeat": "core.heartbeat",
    "LeaseConfigError": "settings",
    "LeaseExtender": "standalone.extender",
    "LeaseExtenderConfig": "standalone.extender",
    "LeasedRequest": "worker.request",
    "LeasedTask": "task.task",
    "LoopGroup": "standalone.loops",
    "Runnable": "standalone.loops",
    "ShutdownCoordinator": "standalone.loops",
    "ToolContext": "task.context",
    "current_context": "task.current",
    "install": "installation",
    "lease_consumer": "standalone.consumer",
    "leased_task": "task.decorator",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name on first use: importing the package alone imports no Celery."""
        if name == "__version__":
            from importlib.metadata import version

            return version("celery-lease")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        home = import_module(f"{__name__}.{_HOMES.get(name, 'core.errors')}")
        globals()[name] = value = getattr(home, name)  # the next use finds it at once
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
