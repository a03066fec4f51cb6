"""Unwraps a failure that billiard has wrapped, so that its traceback is sent and logged once.

Between processes it is unpacked; in the worker's own process (threads, green and solo pools,
failures set by the main process) Celery takes the wrapper for the error.

Upstream: https://github.com/celery/billiard/pull/368; https://github.com/celery/celery/pull/7781.
Versions: billiard 4.2 and 4.3 with Celery 5.5.3 to 5.7.0.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]


def unwrapped(exc_info: Any) -> Any:
    """Return exception info without the wrapper around its error."""
    exc = exc_info.exception
    if not isinstance(exc, ExceptionWithTraceback):
        return exc_info
    bare = copy(exc_info)
    bare.exception = exc.exc
    return bare
