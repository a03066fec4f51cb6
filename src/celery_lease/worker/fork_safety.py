"""Takes locks around a fork, so that no child is born with one of them held.

The main process forks replacements (``max_tasks_per_child``, autoscale, crashes) while other
threads hold locks. The child has no such threads, so the locks would stay held in it for ever.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Protocol


class Lock(Protocol):
    """A lock that the forking thread takes around the fork."""

    def acquire(self) -> bool: ...

    def release(self) -> None: ...


# The locks themselves, so that an entry goes with its owner. Written by threads that start workers.
_guarded: weakref.WeakSet[Lock] = weakref.WeakSet()

# The locks of each fork under way. The forking thread has every lock, so there is one entry at
# most, except while locks are added or removed; the child inherits it and releases the same locks.
_held: list[list[Lock]] = []


def guard(lock: Lock) -> None:
    """Take *lock*, which has to be reentrant, around every fork of this process from now on."""
    _guarded.add(lock)


def forget(lock: Lock) -> None:
    """Undo :func:`guard`."""
    _guarded.discard(lock)


def guarded() -> int:
    """Return the number of locks that are taken around a fork."""
    return len(_guarded)


def _hold() -> None:
    locks = list(_guarded)
    for lock in locks:
        lock.acquire()
    _held.append(locks)


def _let_go() -> None:
    for lock in _held.pop():
        lock.release()


if sys.platform != "win32":
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_let_go)
