"""Leases for long Celery tasks: neither run twice nor lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .brokers.consumer import lease_consumer
    from .checkpoints.errors import CheckpointError
    from .context import ToolContext
    from .core.errors import (
        AlreadyAttached,
        LeaseError,
        LeaseLost,
        ReceiptHandleExpiredError,
        ShutdownRequested,
        TaskCancelled,
        TooManyDeliveries,
        UnsupportedBroker,
    )
    from .core.heartbeat import Heartbeat
    from .current import current_context
    from .decorator import leased_task
    from .extender import LeaseExtender, LeaseExtenderConfig
    from .loops import LoopGroup, Runnable, ShutdownCoordinator
    from .settings import LeaseConfigError
    from .task import LeasedTask

__all__ = [
    "AlreadyAttached",
    "CheckpointError",
    "Heartbeat",
    "LeaseConfigError",
    "LeaseError",
    "LeaseExtender",
    "LeaseExtenderConfig",
    "LeaseLost",
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
    "current_context",
    "lease_consumer",
    "leased_task",
]

_HOMES = {
    "CheckpointError": "checkpoints.errors",
    "Heartbeat": "core.heartbeat",
    "LeaseConfigError": "settings",
    "LeaseExtender": "extender",
    "LeaseExtenderConfig": "extender",
    "LeasedTask": "task",
    "LoopGroup": "loops",
    "Runnable": "loops",
    "ShutdownCoordinator": "loops",
    "ToolContext": "context",
    "current_context": "current",
    "lease_consumer": "brokers.consumer",
    "leased_task": "decorator",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name on first use, so that the package alone imports no Celery."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        home = import_module(f"{__name__}.{_HOMES.get(name, 'core.errors')}")
        globals()[name] = value = getattr(home, name)  # the next use finds it at once
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
