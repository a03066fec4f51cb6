"""A context under a lease that the test controls, and that records its beats.

It is the real :class:`~celery_lease.ToolContext` over a real beat board. The work of a worker's
keeper is done here at every beat and every move of the clock: the lease expires at the last beat
plus ``lease_extension``, at the end of a quiet period, or at ``lease_max_duration``.
"""

from __future__ import annotations

import inspect
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import celery_lease
from celery_lease import board as beatboard, settings
from celery_lease.board import BEAT, Board, Progress
from celery_lease.core.loss import (
    CONSEQUENCES,
    FLAG_CANCELLED,
    FLAG_SHUTDOWN,
    FLAGS_ENDED,
    LossReason,
)
from celery_lease.core.policy import LeasePolicy, Mode
from celery_lease.core.ticket import Ticket
from celery_lease.task.checkpoints import Checkpoints
from celery_lease.task.checkpoints.memory import MemoryStore
from celery_lease.task.context import ToolContext
from celery_lease.task.task import LeasedTask, lease_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_lease.testing.clock import LeaseClock

#: Files whose frames are not the user's.
_OURS = (f"{Path(celery_lease.__file__).parent}{os.sep}", contextmanager.__code__.co_filename)


@dataclass(frozen=True, slots=True)
class Beat:
    """One beat that counted, with its arguments."""

    at: float  #: seconds since the run began
    done: float | None = None
    total: float | None = None
    note: str | None = None
    steps: tuple[str, ...] = ()  #: the steps that were open, the outermost first
    where: str = ""  #: file and line of the beat, or of the call that beat


class _Recorder(Checkpoints):
    """Checkpoints in memory that record all saved values."""

    def __init__(self, task_id: str, store: MemoryStore) -> None:
        super().__init__(task_id, find=lambda: store)
        self.saved: list[Any] = []

    def save(self, value: Any) -> None:
        super().save(value)
        self.saved.append(json.loads(self._state))


def policy_of(task: object = None, **lease_settings: object) -> LeasePolicy:
    """Return the policy of a task, by its app's settings and its own; without a task the defaults.

    Raises:
        LeaseConfigError: A setting is unknown or wrong.
    """
    if not isinstance(task, LeasedTask):
        return settings.load(lease_settings).policy
    registered: Any = task.app.tasks[task.name]  # a decorator returns a proxy
    own = {**lease_options(registered), **lease_settings}
    return settings.task_lease(settings.load(task.app.conf), own, task.name).policy


class RecordedContext(ToolContext):
    """A context whose beats are recorded, and whose lease ends when the test says so."""

    def __init__(
        self,
        clock: LeaseClock,
        policy: LeasePolicy,
        *,
        restored: Any = None,
        deliveries: int = 1,
        fencing_token: int = 1,
        task_id: str = "test",
        after: RecordedContext | None = None,
    ) -> None:
        board = Board.private()
        slot = board.lend()
        board.allow(slot, clock.now() + policy.extension)
        ticket = Ticket(
            token=fencing_token,
            deliveries=deliveries,
            worker="test",
            extension=policy.extension,
            mode=policy.mode,
            on_lost=policy.on_lost,
        )
        super().__init__(board, slot, task_id=task_id, ticket=ticket)
        self.clock, self.policy = clock, policy
        self.beats: list[Beat] = []  #: those that counted, in order
        self.quiet_periods: list[tuple[float, float]] = []  #: start and declared end, as in beats
        self._store: MemoryStore = after._store if after else MemoryStore()  # noqa: SLF001
        self._checkpoints = self._recorder = _Recorder(task_id, self._store)
        if restored is not None:
            self._recorder.save(restored)
            self._recorder.saved.clear()
        self._steps: list[str] = []
        self._awaited: list[tuple[int, Callable[[], None]]] = []  # due after so many beats
        self._asked_to_stop: float | None = None
        self._began = clock.now()
        self._start()
        clock.watch(self._keep)

    # -------------------------------------------------------------------------------- the record

    @property
    def passed(self) -> float:
        """Seconds since the run began."""
        return self.clock.now() - self._began

    @property
    def progress(self) -> Progress:
        """The last progress: ``done``, ``total`` and ``note``."""
        return self._board.read_progress(self._slot)

    @property
    def saved(self) -> list[Any]:
        """All values of :meth:`checkpoint`, in order."""
        return self._recorder.saved

    # -------------------------------------------------------------------------- the test's side

    def lose(self, *, after: int = 0) -> None:
        """Give the message to another holder: now, or once *after* more beats have counted."""
        self._when(after, lambda: self._flag(FLAGS_ENDED))

    def cancel(self, *, after: int = 0) -> None:
        """Cancel the task: now, or once *after* more beats have counted."""
        self._when(after, lambda: self._flag(FLAG_CANCELLED))

    def shut_down(self, *, after: int = 0) -> None:
        """Ask the worker to stop: now, or once *after* more beats have counted.

        ``shutting_down`` is true at once. An interruptible task is asked at its next beat, another
        one after the clock was moved by ``lease_shutdown_timeout``.
        """
        self._when(after, self._ask_to_stop)

    # --------------------------------------------------------------------------- the task's side

    def beat(
        self, done: float | None = None, total: float | None = None, note: str | None = None
    ) -> None:
        """As in a worker; a beat that counts is recorded."""
        super().beat(done, total, note)
        if self.is_lost:
            return  # lease_on_lost is "continue"
        at, steps = self.passed, tuple(self._steps)
        self.beats.append(Beat(at, done, total, note, steps, _caller()))
        self._keep()
        due = [act for beats, act in self._awaited if beats <= len(self.beats)]
        self._awaited = [each for each in self._awaited if each[0] > len(self.beats)]
        for act in due:
            act()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """As in a worker; the beats in the block have its name."""
        self._steps.append(name)
        try:
            with super().step(name):
                yield
        finally:
            self._steps.pop()

    @contextmanager
    def quiet(self, seconds: float) -> Iterator[None]:
        """As in a worker; the period is recorded."""
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
        """Do the work of a worker's keeper for this lease."""
        now, policy = self.clock.now(), self.policy
        if now - self._began >= policy.max_duration:
            self._flag(CONSEQUENCES[LossReason.MAX_DURATION].flags)
        if self._asked_to_stop is not None:
            waited = now - self._asked_to_stop
            if policy.interruptible or waited >= policy.shutdown_timeout:
                self._flag(FLAG_SHUTDOWN)
        beats = policy.mode is Mode.HEARTBEAT
        if beats and self.is_lost:
            return
        proof = self._board.read_time(self._slot, BEAT) if beats else now
        quiet_until = self._board.read_time(self._slot, beatboard.QUIET)
        expiry = max(proof + policy.extension, quiet_until)
        if expiry > now:
            self._board.allow(self._slot, expiry)

    def _ask_to_stop(self) -> None:
        self._board.announce_shutdown()
        self._asked_to_stop = self.clock.now()
        self._keep()

    def _flag(self, flags: int) -> None:
        self._board.flag(self._slot, flags)

    def _when(self, after: int, act: Callable[[], None]) -> None:
        if after > 0:
            self._awaited.append((len(self.beats) + after, act))
        else:
            act()


def _caller() -> str:
    """Return the place of a beat, outside of this package, as file and line."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else ""
