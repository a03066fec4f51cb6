"""Finds silent loops of a group, for its watchdog and for its probes."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_lease.health_server import Health

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from celery_lease.core.clock import Clock

    from .runnable import Runnable


class LoopWatch:
    """Reads the heartbeats of loops; a loop without the attribute ``heartbeat`` is not watched.

    It only reads: any thread may use it.
    """

    def __init__(self, loops: Sequence[Runnable], threshold: float | None, clock: Clock) -> None:
        """Prepare; silence is not counted yet.

        Args:
            loops: All loops of the group.
            threshold: Seconds without a beat after which a loop is stuck; None: never.
            clock: Counts from the group's start: a heartbeat may be much older.

        Raises:
            ValueError: The threshold is not above 0, or no loop has a heartbeat.
        """
        self.threshold = threshold
        found = (
            (position, getattr(loop, "heartbeat", None)) for position, loop in enumerate(loops)
        )
        self._heartbeats: Mapping[int, Any] = {
            position: heartbeat for position, heartbeat in found if heartbeat is not None
        }
        self._clock = clock
        self._started = clock.now()
        if threshold is None:
            return
        if not threshold > 0:
            raise ValueError(f"watchdog_threshold must be above 0 seconds, or None: {threshold!r}")
        if not self._heartbeats:
            raise ValueError(
                f"watchdog_threshold = {threshold:g} has nothing to watch: no loop has an "
                "attribute heartbeat; give each a celery_lease.Heartbeat that it beats"
            )

    def start(self) -> None:
        """Start counting silence."""
        self._started = self._clock.now()

    def silence(self, position: int) -> float | None:
        """Return the seconds for which a loop has been silent; None: it has no heartbeat."""
        if (heartbeat := self._heartbeats.get(position)) is None:
            return None
        return min(float(heartbeat.elapsed()), self._clock.now() - self._started)

    def is_stuck(self, position: int) -> bool:
        silence = self.silence(position)
        return silence is not None and self.threshold is not None and silence > self.threshold


@dataclass(frozen=True, slots=True)
class GroupHealth(Health):
    """The answer to a probe of a group."""

    stopping: bool
    loops: list[dict[str, object]]  #: ``loop``, ``running`` and seconds ``silent``, or None


def stack_of(thread: threading.Thread | None) -> str:
    """Return the stack of a thread, the most recent call last; "" if it has ended."""
    frame = None if thread is None else sys._current_frames().get(thread.ident or 0)  # noqa: SLF001
    return "".join(traceback.format_stack(frame)) if frame else ""
