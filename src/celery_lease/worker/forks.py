"""Locks that no child may be born with: a fork waits until it can have all of them.

The main process forks replacements (``max_tasks_per_child``, autoscale, crashes) while other
threads hold locks; the child has no such threads, so what they held would be held for ever.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Lock(Protocol):
    """What is taken around a fork, by the thread that forks."""

    def acquire(self) -> bool: ...

    def release(self) -> None: ...


# By the locks themselves, so that one goes with its owner. Written by threads that start workers.
_guarded: weakref.WeakSet[Lock] = weakref.WeakSet()

# What each fork under way holds. Its thread has every lock, so there is one entry at most, except
# while locks come and go; the child inherits it and lets go of the same ones.
_held: list[list[Lock]] = []


def guard(lock: Lock) -> None:
    """Take *lock* around every fork of this process from now on. It has to be reentrant."""
    _guarded.add(lock)


def forget(lock: Lock) -> None:
    """Undo :func:`guard`."""
    _guarded.discard(lock)


def guarded() -> int:
    """Return how many locks are taken around a fork."""
    return len(_guarded)


def _hold() -> None:
    locks = list(_guarded)
    for lock in locks:
        lock.acquire()
    _held.append(locks)


def _let_go() -> None:
    for lock in _held.pop():
        lock.release()


os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_let_go)
