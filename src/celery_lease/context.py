"""What a leased task's author sees: the context, and the way to reach it.

A context writes times and reads times on the beat board, nothing else: no lock, no I/O, no broker.
Without a lease (a direct call, an eager task, a test) it has a private board of a few cells with
a deadline that never comes, so there is one code path.
"""

from __future__ import annotations

import logging
import math
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from celery_lease import subprocesses
from celery_lease.core import board as beatboard
from celery_lease.core.board import Board, Slot
from celery_lease.core.clock import NANOSECONDS, SystemClock, now_ns
from celery_lease.core.errors import LeaseLost, ShutdownRequested, TaskCancelled
from celery_lease.core.heartbeat import Heartbeat

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

T = TypeVar("T")

logger = logging.getLogger(__name__)


class ToolContext:
    """A leased task's view of its lease. Any thread of the task may use it."""

    def __init__(
        self,
        board: Board,
        slot: Slot,
        *,
        task_id: str = "",
        ticket: Mapping[str, Any] | None = None,
    ) -> None:
        ticket = ticket or {}
        self._board, self._slot = board, slot
        self._cells = board.cells
        self._base = slot.base
        self._limit = slot.base + beatboard.TIME_MASK
        self._beat_cell = slot.first + beatboard.BEAT
        self._gate_cell = slot.first + beatboard.GATE
        self._heartbeat: _ContextHeartbeat | None = None
        self._told = False
        self.task_id = task_id
        self.leased = bool(ticket)
        self.fencing_token: int | None = ticket.get("token")
        self.deliveries: int = ticket.get("deliveries", 1)
        self.worker_id: str = ticket.get("worker", "")
        self._aborts = ticket.get("on_lost", "abort") == "abort"
        self._observed = ticket.get("mode") == "observe"
        self._interruptible = bool(ticket.get("interruptible"))

    def beat(
        self, done: float | None = None, total: float | None = None, note: str | None = None
    ) -> None:
        """Prove progress; optionally say how far the task is.

        Args:
            done: How much is done, in any unit.
            total: How much there is in all, in the same unit.
            note: A short text for people; at most 120 bytes are kept.

        Raises:
            LeaseLost: The lease is gone; stop side effects and let it pass.
            ShutdownRequested: The worker stops and the task is interruptible; let it pass.
            TaskCancelled: Somebody cancelled the task; clean up and let it pass.
        """
        stamp = self._base + now_ns()
        if stamp < self._cells[self._gate_cell] < self._limit:
            self._cells[self._beat_cell] = stamp
        else:
            self._refused(stamp)
        if done is not None or total is not None or note is not None:
            self._report(done, total, note)
        if self._heartbeat is not None:
            self._heartbeat.passed_on()

    def track(self, iterable: Iterable[T], total: float | None = None) -> Iterator[T]:
        """Iterate over *iterable*, beating for every item and reporting how many are done.

        Args:
            iterable: What to go through.
            total: How many items there are; by default ``len(iterable)`` if it has one.

        Raises:
            LeaseLost: As :meth:`beat`.
        """
        if total is None and hasattr(iterable, "__len__"):
            total = len(iterable)
        self.beat(0, total)
        for done, item in enumerate(iterable, 1):
            yield item
            self.beat(done)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Name one tool or phase in the progress, beating before and, if it succeeds, after."""
        self.beat(note=name)
        yield
        self.beat()

    def tool(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call *function* as a step of its name and return what it returns."""
        with self.step(getattr(function, "__name__", None) or repr(function)):
            return function(*args, **kwargs)

    def run(
        self,
        command: str | list[str],
        *,
        input: str | bytes | None = None,  # noqa: A002  (subprocess.run's name for it)
        check: bool = False,
        timeout: float | None = None,
        **popen: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """Run a subprocess, beating on its output; end it when the lease is lost.

        The arguments are those of :func:`subprocess.run`. Output that is not redirected is
        captured, as with ``capture_output=True``. A command that is silent for longer than
        ``lease_extension`` loses the lease: put it into :meth:`quiet`.

        Raises:
            LeaseLost: The lease was lost; the command was terminated, and killed 5 s later.
            subprocess.CalledProcessError: *check* was given and the command failed.
            subprocess.TimeoutExpired: *timeout* seconds went by.
        """
        return subprocesses.run(
            self, command, input=input, check=check, timeout=timeout, **popen
        )

    @contextmanager
    def quiet(self, seconds: float) -> Iterator[None]:
        """Announce one long call that cannot beat, of at most *seconds*.

        The lease is extended to cover that time and no more: work that takes longer loses it.

        Raises:
            ValueError: *seconds* is not a positive, finite number.
            LeaseLost: The lease is gone, before or after.
        """
        if isinstance(seconds, bool) or not 0 < seconds < math.inf:
            raise ValueError(f"quiet() needs a positive number of seconds, not {seconds!r}")
        self.beat()
        until = now_ns() / NANOSECONDS + seconds
        self._board.write_time(self._slot, beatboard.QUIET, until)
        try:
            yield
        finally:
            self._cells[self._slot.first + beatboard.QUIET] = 0
        self.beat()

    @property
    def heartbeat(self) -> Heartbeat:
        """The heartbeat behind this context, for code that takes one; its beats count here."""
        if self._heartbeat is None:
            self._heartbeat = _ContextHeartbeat(self)
        return self._heartbeat

    @property
    def remaining(self) -> float:
        """Seconds until the lease expires if nothing extends it; infinite without a lease."""
        if not self.leased:
            return math.inf
        deadline = self._board.read_time(self._slot, beatboard.DEADLINE)
        return max(0.0, deadline - now_ns() / NANOSECONDS)

    @property
    def deadline(self) -> datetime | None:
        """When the lease expires if nothing extends it; None without a lease."""
        if not self.leased:
            return None
        return SystemClock().wall() + timedelta(seconds=self.remaining)

    @property
    def elapsed(self) -> float:
        """Seconds since the last beat."""
        last = self._board.read_time(self._slot, beatboard.BEAT)
        return now_ns() / NANOSECONDS - last

    @property
    def shutting_down(self) -> bool:
        """Whether the worker was asked to stop."""
        return self.leased and self._board.shutting_down

    @property
    def is_lost(self) -> bool:
        """Whether the lease is gone; checks without beating."""
        if self._observed:
            return False
        flags = self._flags()
        if flags is None or flags & beatboard.FLAG_LOST:
            return True
        return now_ns() / NANOSECONDS >= self._board.read_time(self._slot, beatboard.DEADLINE)

    def check(self) -> None:
        """Raise what :meth:`beat` would raise, without proving progress."""
        stamp = self._base + now_ns()
        if not stamp < self._cells[self._gate_cell] < self._limit:
            self._refused(stamp)

    def _start(self) -> None:
        """Begin to run: the first beat."""
        now = now_ns() / NANOSECONDS
        self._board.write_time(self._slot, beatboard.STARTED, now)
        self._board.write_time(self._slot, beatboard.BEAT, now)

    def _flags(self) -> int | None:
        """Return what the keeper told this lease; None if the record is another lease's by now."""
        value = self._cells[self._slot.first + beatboard.FLAGS]
        if value and value >> beatboard.GENERATION_SHIFT != self._slot.generation:
            return None
        deadline = self._cells[self._slot.first + beatboard.DEADLINE]
        if deadline >> beatboard.GENERATION_SHIFT != self._slot.generation:
            return None
        return value & beatboard.TIME_MASK

    def _refused(self, stamp: int) -> None:
        """Find out why the gate is closed. Slow, and seldom."""
        if self.is_lost:
            self._lost()
            return
        flags = self._flags() or 0
        if flags & beatboard.FLAG_CANCELLED:
            raise TaskCancelled(self.task_id)
        if flags & beatboard.FLAG_SHUTDOWN and self._interruptible:
            raise ShutdownRequested(self.task_id)
        self._cells[self._beat_cell] = stamp

    def _lost(self) -> None:
        flags = self._flags()
        reason = "expired"
        if flags is None or flags & beatboard.FLAG_TAKEN:
            reason = "another delivery owns the message"
        elif flags & beatboard.FLAG_MAX_DURATION:
            reason = "lease_max_duration reached"
        if self._aborts:
            raise LeaseLost(self.task_id, reason)
        if not self._told:
            self._told = True
            logger.warning("lease of task %s lost (%s); the task runs on", self.task_id, reason)

    def _report(self, done: float | None, total: float | None, note: str | None) -> None:
        first = self._slot.first
        if done is not None:
            self._board.numbers[first + beatboard.DONE] = done
        if total is not None:
            self._board.numbers[first + beatboard.TOTAL] = total
        if note is not None:
            self._board.write_note(self._slot, note)
        self._cells[first + beatboard.PROGRESS] += 1


class _ContextHeartbeat(Heartbeat):
    """A heartbeat whose beats are the context's."""

    def __init__(self, context: ToolContext) -> None:
        super().__init__()
        self._context = context

    def beat(self) -> None:
        """Beat for the lease, then for the callbacks."""
        self._context.beat()

    def passed_on(self) -> None:
        """Take over a beat that was made on the context."""
        super().beat()


_current: ContextVar[ToolContext | None] = ContextVar("celery_lease_context", default=None)


def current_context() -> ToolContext:
    """Return the context of the leased task that runs here.

    Raises:
        LookupError: No leased task runs in this thread.
    """
    context = _current.get()
    if context is None:
        raise LookupError(
            "no leased task runs here; call current_context() inside one, in the task's own "
            "thread, and pass the context on to other threads"
        )
    return context


@contextmanager
def entered(context: ToolContext) -> Iterator[ToolContext]:
    """Make *context* the current one."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def active_context() -> ToolContext | None:
    """Return the current context, if there is one."""
    return _current.get()


def private_context(task_id: str = "") -> ToolContext:
    """Return a context without a lease, for a call outside a worker."""
    board = Board.private()
    slot = board.lend()
    board.allow(slot, beatboard.TIME_MASK / NANOSECONDS / 2)
    context = ToolContext(board, slot, task_id=task_id)
    context._start()
    return context


def leased_context(ticket: Mapping[str, Any], task_id: str) -> ToolContext:
    """Return the context for a ticket that the worker's main process wrote.

    Raises:
        LeaseLost: That worker is gone, so nobody keeps the lease.
    """
    try:
        board = Board.at(ticket["board"])
    except OSError:
        raise LeaseLost(task_id, "the worker's main process is gone") from None
    return ToolContext(
        board, Slot(ticket["slot"], ticket["generation"]), task_id=task_id, ticket=ticket
    )
