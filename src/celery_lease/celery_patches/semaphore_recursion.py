"""Avoids unbounded recursion in the pool semaphore, which ends the worker by ``RecursionError``.

A request that is refused releases its place to the next in line, which Celery calls from there.
When a worker drains, or wakes up after a pause, hundreds in a row are refused.

Upstream: https://github.com/celery/celery/issues/6736.
Versions: Celery 5.5.3 to 5.7.0 (celery/worker/worker.py, ``_quick_release``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def flatten(worker: Any) -> None:
    """Make a *worker* handle a line of requests of any length; a second call does nothing."""
    release = getattr(worker, "_quick_release", None)  # only prefork pools have a line
    if release is not None and not isinstance(release, _Release):
        worker._quick_release = _Release(release)  # noqa: SLF001


class _Release:
    """Releases places; a call from inside of a release takes effect after it.

    For the main thread, like the method that it replaces.
    """

    def __init__(self, release: Callable[[], object]) -> None:
        self._release = release
        self._due = 0
        self._running = False

    def __call__(self) -> None:
        self._due += 1
        if self._running:
            return
        self._running = True
        try:
            while self._due:
                self._due -= 1
                self._release()
        finally:
            self._running = False
