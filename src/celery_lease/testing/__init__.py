"""Tools for tests of leased tasks: contexts on a clock that the test moves, and real workers.

The pytest plugin of this package has fixtures for all of them (:mod:`.plugin`); import from here
for annotations, and for fixtures of your own. Every pytest run of an environment with celery-lease
imports this module and the plugin, so neither imports Celery.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .broker import embedded_broker
    from .clock import LeaseClock
    from .contexts import Beat, RecordedContext
    from .silence import BeatAssertion
    from .worker import WorkerProcess

__all__ = [
    "Beat",
    "BeatAssertion",
    "LeaseClock",
    "RecordedContext",
    "WorkerProcess",
    "embedded_broker",
]

_HOMES = {
    "Beat": "contexts",
    "BeatAssertion": "silence",
    "LeaseClock": "clock",
    "RecordedContext": "contexts",
    "WorkerProcess": "worker",
    "embedded_broker": "broker",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name on first use, as the package itself does."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
