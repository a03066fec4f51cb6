"""Adapters for each kind of pool: its slots, its running tasks, and its ways to end one.

The adapter is chosen once. Read in Celery 5.5.3 and 5.7.0; a change of the internals that it uses
fails ``tests/unit/worker/test_pools.py``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .base import Pool, Solo, Thread
from .green import Green
from .prefork import Prefork, wait_for_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.worker.consumer import Consumer

__all__ = ["KINDS", "Pool", "adapter", "kind", "wait_for_process"]

KINDS: dict[str, type[Pool]] = {
    "prefork": Prefork,
    "thread": Thread,
    "gevent": Green,
    "eventlet": Green,
    "solo": Solo,
}


def kind(pool: Any) -> str:
    """Return the name of the module of a pool's class."""
    return type(pool).__module__.rpartition(".")[2]


def queues_inside(pool: Any) -> bool:
    """Whether more requests may be in a pool than it runs: of threads and greenlets."""
    return kind(pool) in ("thread", "gevent", "eventlet")


def end_of_work() -> BaseException:
    """Return what ends the work of a thread or greenlet at its acceptance, and nothing else.

    A thread's executor keeps it, and nobody asks; the hubs of greenlets take only this for an end.
    """
    found = sys.modules.get("greenlet")
    return found.GreenletExit() if found is not None else RuntimeError("not started")


def adapter(consumer: Consumer, leave_now: Callable[[], None] = lambda: None) -> Pool:
    """Return the adapter of a consumer's pool; *leave_now* ends the process at once."""
    return KINDS.get(kind(consumer.pool), Pool)(consumer, leave_now)
