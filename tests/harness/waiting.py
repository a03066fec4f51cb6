"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, TypeVar

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
    """Return the first true value of ``predicate``, asked every ``every`` seconds.

    ``what`` is said when it never came true; a callable is asked for it then.

    Raises:
        AssertionError: It was still false after ``within`` seconds.
    """
    end = time.monotonic() + within
    while not (value := predicate()):
        if time.monotonic() > end:
            said = what() if callable(what) else what
            name = said or getattr(predicate, "__qualname__", repr(predicate))
            message = f"not within {within} s: {name} (last value {value!r})"
            raise AssertionError(message)
        time.sleep(every)
    return value


def always(predicate: Callable[[], object], during: float, *, every: float = 0.02) -> bool:
    """Return whether ``predicate`` was true whenever asked in the next ``during`` seconds."""
    end = time.monotonic() + during
    while time.monotonic() < end:
        if not predicate():
            return False
        time.sleep(every)
    return True


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
