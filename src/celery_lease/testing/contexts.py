"""A context under a lease that nobody but the test keeps, and that writes down what was done.

It is the real :class:`~celery_lease.ToolContext` over a real beat board. What the keeper does in a
worker is done here at every beat and every move of the clock: the lease expires at the last beat
plus ``lease_extension``, at the end of a quiet period, or at ``lease_max_duration``.
"""

from __future__ import annotations

import inspect
import os
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import celery_lease
from celery_lease import settings
from celery_lease.checkpoints import Checkpoints
from celery_lease.checkpoints.envelope import unpack
from celery_lease.checkpoints.memory import MemoryStore
from celery_lease.context import ToolContext
from celery_lease.core import board as beatboard
from celery_lease.core.board import BEAT, Board
from celery_lease.core.policy import Mode
from celery_lease.task import LeasedTask, lease_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from celery_lease.core.board import Progress
    from celery_lease.core.policy import LeasePolicy
    from celery_lease.testing.clock import LeaseClock

#: Files whose frames are not the user's.
_OURS = (f"{Path(celery_lease.__file__).parent}{os.sep}", contextmanager.__code__.co_filename)


@dataclass(frozen=True, slots=True)
class Beat:
    """One beat that counted, and what was told with it."""

    at: float  #: seconds since the run began
    done: float | None = None
    total: float | None = None
    note: str | None = None
    steps: tuple[str, ...] = ()  #: the steps that were open, the outermost first
    where: str = ""  #: file and line that beat, or that used what beats


@dataclass(slots=True)
class _Awaited:
    """What is to happen once so many beats were made."""

    beats: int
    act: Callable[[], None]


class _Recorder(MemoryStore):
    """A checkpoint's store that keeps all that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[Any] = []

    def save(self, task_id: str, token: int, text: str) -> bool:
        self.saved.append(unpack(text, task_id=task_id).value)
        return super().save(task_id, token, text)


def policy_of(task: object = None, **lease_settings: object) -> LeasePolicy:
    """Return what a task's leases obey, by its app's settings and its own; without one, defaults.

    Raises:
        LeaseConfigError: A setting is unknown or wrong.
    """
    if not isinstance(task, LeasedTask):
        return settings.load(lease_settings).policy
    registered: Any = task.app.tasks[task.name]  # a decorator returns a proxy
    own = {**lease_options(registered), **lease_settings}
    return settings.task_lease(settings.load(task.app.conf), own, task.name).policy


class RecordedContext(ToolContext):
    """A context whose beats are written down, and whose lease ends when the test says so."""

    def __init__(
        self,
        clock: LeaseClock,
        policy: LeasePolicy,
        *,
        restored: Any = None,
        deliveries: int = 1,
        fencing_token: int = 1,
        task_id: str = "test",
    ) -> None:
        board = Board.private()
        slot = board.lend()
        board.allow(slot, clock.now() + policy.extension)
        ticket = {
            "token": fencing_token,
            "deliveries": deliveries,
            "worker": "test",
            "extension": policy.extension,
            "mode": policy.mode,
            "on_lost": policy.on_lost,
        }
        super().__init__(board, slot, task_id=task_id, ticket=ticket)
        self.clock, self.policy = clock, policy
        self.beats: list[Beat] = []  #: those that counted, in order
        self.quiet_periods: list[tuple[float, float]] = []  #: begin and declared end, as in beats
        self._store = _Recorder()
        self._checkpoints = Checkpoints(task_id, find=lambda: self._store)
        if restored is not None:
            self._checkpoints.save(restored)
            self._store.saved.clear()
        self._steps: list[str] = []
        self._awaited: list[_Awaited] = []
        self._asked_to_stop: float | None = None
        self._began = clock.now()
        self._start()
        clock.watch(self._keep)

    # ------------------------------------------------------------------------- what was done

    @property
    def passed(self) -> float:
        """Seconds since the run began."""
        return self.clock.now() - self._began

    @property
    def progress(self) -> Progress:
        """What was last told: ``done``, ``total`` and ``note``."""
        return self._board.read_progress(self._slot)

    @property
    def saved(self) -> list[Any]:
        """All values that were given to :meth:`checkpoint`, in order."""
        return self._store.saved

    # ---------------------------------------------------------------------- what the test does

    def lose(self, *, after: int = 0) -> None:
        """Give the message to somebody else: now, or once *after* more beats have counted."""
        self._when(after, lambda: self._tell(beatboard.FLAG_LOST | beatboard.FLAG_TAKEN))

    def cancel(self, *, after: int = 0) -> None:
        """Cancel the task: now, or once *after* more beats have counted."""
        self._when(after, lambda: self._tell(beatboard.FLAG_CANCELLED))

    def shut_down(self, *, after: int = 0) -> None:
        """Ask the worker to stop: now, or once *after* more beats have counted.

        ``shutting_down`` is true at once. An interruptible task is told at its next beat, any other
        one once the clock was moved by ``lease_shutdown_timeout``.
        """
        self._when(after, self._ask_to_stop)

    # --------------------------------------------------------------------------- the task's side

    def beat(
        self, done: float | None = None, total: float | None = None, note: str | None = None
    ) -> None:
        """As in a worker, and write it down if it counts."""
        super().beat(done, total, note)
        if self.is_lost:
            return  # lease_on_lost is "continue"
        at, steps = self.passed, tuple(self._steps)
        self.beats.append(Beat(at, done, total, note, steps, _caller()))
        self._keep()
        due = [each for each in self._awaited if each.beats <= len(self.beats)]
        self._awaited = [each for each in self._awaited if each not in due]
        for each in due:
            each.act()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """As in a worker; the beats in it know its name."""
        self._steps.append(name)
        try:
            with super().step(name):
                yield
        finally:
            self._steps.pop()

    @contextmanager
    def quiet(self, seconds: float) -> Iterator[None]:
        """As in a worker, and write it down."""
        try:
            with super().quiet(seconds):
                self.quiet_periods.append((self.passed, self.passed + seconds))
                self._keep()
                yield
        finally:
            self._keep()

    @property
    def deadline(self) -> datetime | None:
        """When the lease expires, by the test's clock."""
        return self.clock.wall() + timedelta(seconds=self.remaining)

    # ---------------------------------------------------------------------------- the worker's side

    def _keep(self) -> None:
        """Do what a worker's keeper does for this lease."""
        now, policy = self.clock.now(), self.policy
        if now - self._began >= policy.max_duration:
            self._tell(beatboard.FLAG_LOST | beatboard.FLAG_MAX_DURATION)
        if self._asked_to_stop is not None:
            self._press(now - self._asked_to_stop)
        if policy.mode is Mode.HEARTBEAT and self.is_lost:
            return
        proof = self._board.read_time(self._slot, BEAT)
        if policy.mode is not Mode.HEARTBEAT:
            proof = now
        quiet_until = self._board.read_time(self._slot, beatboard.QUIET)
        expiry = max(proof + policy.extension, quiet_until)
        if expiry > now:
            self._board.allow(self._slot, expiry)

    def _press(self, waited: float) -> None:
        if self.policy.interruptible or waited >= self.policy.shutdown_timeout:
            self._tell(beatboard.FLAG_SHUTDOWN)

    def _ask_to_stop(self) -> None:
        self._board.announce_shutdown()
        self._asked_to_stop = self.clock.now()
        self._keep()

    def _tell(self, flags: int) -> None:
        self._board.flag(self._slot, flags)

    def _when(self, after: int, act: Callable[[], None]) -> None:
        if after > 0:
            self._awaited.append(_Awaited(len(self.beats) + after, act))
        else:
            act()


def _caller() -> str:
    """Return where the code outside of this package is that made a beat."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else ""
