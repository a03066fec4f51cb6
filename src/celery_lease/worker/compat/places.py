"""Celery's places for requests that wait for the pool, without a call for each inside the last.

A request that is not let in gives its place to the next in line, which Celery then calls from
there. When a worker drains, or comes back from a pause, hundreds in a row are not let in: their
calls, one inside the other, ended the worker by the interpreter's limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def flatten(worker: Any) -> None:
    """Let a *worker* go through a line of requests of any length; a second call does nothing."""
    release = getattr(worker, "_quick_release", None)  # only pools of processes have a line
    if release is not None and not isinstance(release, _Release):
        worker._quick_release = _Release(release)  # noqa: SLF001


class _Release:
    """Gives a place away; called from inside of itself, only when the first call is back.

    For the main thread, as what it stands for.
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
