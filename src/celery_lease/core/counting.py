"""Finds out how many items an iteration has."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

#: The errors of a ``len()`` without an answer; all others have another cause.
NO_LENGTH = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RuntimeError)


def total_of(iterable: Iterable[Any], total: float | None, start: int) -> float | None:
    """Return the number of all items; None if it is unknown.

    Args:
        iterable: The remaining items. Its ``len()`` may raise, as tqdm's does around a generator.
        total: The number that the caller gives; None: none.
        start: The number of items that were done before.

    Raises:
        ValueError: *start* is no whole number, or negative.
    """
    if isinstance(start, bool) or not hasattr(start, "__index__") or start < 0:
        raise ValueError(f"start is the whole number of items that are done, not {start!r}")
    if total is not None or not isinstance(iterable, Sized):
        return total
    try:
        return start + len(iterable)
    except NO_LENGTH:
        return None
