"""Waits for a condition instead of for a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from celery_lease.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def eventually(
    predicate: Callable[[], T],
    within: float = 10.0,
    *,
    every: float = 0.02,
    what: str | Callable[[], str] = "",
) -> T:
    """Return the first true value of ``predicate``, which is called every ``every`` seconds.

    ``what`` is the error's text if it never was true; a callable is called for it then.

    Raises:
        AssertionError: It was still false after ``within`` seconds.
    """
    clock, pause = SystemClock(), threading.Event()
    end = clock.now() + within
    while not (value := predicate()):
        if clock.now() > end:
            said = what() if callable(what) else what
            name = said or getattr(predicate, "__qualname__", repr(predicate))
            message = f"not within {within} s: {name} (last value {value!r})"
            raise AssertionError(message)
        pause.wait(every)
    return value


def always(predicate: Callable[[], object], during: float, *, every: float = 0.02) -> bool:
    """Return whether ``predicate`` was true at every call within ``during`` seconds."""
    clock, pause = SystemClock(), threading.Event()
    end = clock.now() + during
    while clock.now() < end:
        if not predicate():
            return False
        pause.wait(every)
    return True
