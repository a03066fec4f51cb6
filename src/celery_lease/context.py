"""What a leased task's author sees.

A context writes times and reads times on the beat board, nothing else: no lock, no I/O, no broker;
checkpoints alone go to their store.
Without a lease (a direct call, an eager task, a test) it has a private board of a few cells with
a deadline that never comes, so there is one code path.
"""

from __future__ import annotations

import logging
import math
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from celery_lease import subprocesses
from celery_lease.checkpoints import Checkpoints, Superseded
from celery_lease.core import board as beatboard, fields, starting
from celery_lease.core.board import BEAT, GATE, Board, Outcome, Slot
from celery_lease.core.clock import SystemClock, host_seconds
from celery_lease.core.errors import LeaseLost, ShutdownRequested, TaskCancelled
from celery_lease.core.heartbeat import Heartbeat

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
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
        self._record = board.record(slot)
        self._base = board.base(slot)
        self._limit = board.limit(slot)
        self._quiet: list[float] = []  # ends of the quiet periods we are in
        self._heartbeat: _ContextHeartbeat | None = None
        self._told = self._told_to_cancel = False
        self._checkpoints = Checkpoints(task_id)
        self.task_id = task_id
        self.leased = bool(ticket)
        self.fencing_token: int | None = ticket.get("token")
        self.deliveries: int = ticket.get("deliveries", 1)
        self.worker_id: str = ticket.get("worker", "")
        self._aborts = ticket.get("on_lost", "abort") == "abort"
        self._observed = ticket.get("mode") == "observe"
        self._published = ticket.get("publishes", False)
        self._fields = fields.of_ticket(ticket)  # for the log

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
            TaskCancelled: Somebody cancelled the task; clean up, within ``lease_extension``, and
                let it pass.
        """
        record = self._record
        stamp = host_seconds() + self._base
        if stamp < record[GATE] < self._limit or self._may_go_on():
            record[BEAT] = stamp
        else:
            done = total = note = None  # the record may be somebody else's
        if done is not None or total is not None or note is not None:
            self._board.report(self._slot, done, total, note)
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
            total = len(cast("Sized", iterable))
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
        captured, unless ``capture_output=False``. Only captured output counts as progress: a
        command that is silent, or writes to a file of yours, for longer than ``lease_extension``
        loses the lease; put it into :meth:`quiet`.

        The command is ended with everything it started, for which it gets a process group of its
        own (see ``process_group``); if you choose one yourself (also by ``start_new_session`` or
        ``preexec_fn``) that holds others too, the command's own process alone is ended. To end is
        to terminate, and to kill 5 seconds later.

        Raises:
            LeaseLost: The lease was lost; the command was ended. So it is by every other error
                that comes up here, such as a time limit's.
            subprocess.CalledProcessError: *check* was given and the command failed.
            subprocess.TimeoutExpired: *timeout* seconds went by; the command was ended.
            ValueError: *input* and ``stdin`` were both given.
        """
        return subprocesses.run(self, command, input=input, check=check, timeout=timeout, **popen)

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
        until = host_seconds() + seconds
        self.beat()
        self._quiet.append(until)
        self._tell_quiet()
        try:
            yield
            self.beat()
        finally:
            self._quiet.remove(until)
            self._tell_quiet()

    def _tell_quiet(self) -> None:
        """Write when the last of the quiet periods ends that we are in; they may be nested."""
        if self._board.owns(self._slot):
            until = max(self._quiet, default=0.0)
            self._board.write_time(self._slot, beatboard.QUIET, until)

    def checkpoint(self, value: Any) -> None:
        """Save a JSON-able state for whichever run of this task comes next; beat before and after.

        It replaces the last one. The task's success removes it; a crash, a lost lease, a retry and
        a failure do not. It is saved before a wish to stop is told, so an interruptible task that
        ends here resumes from here. Without a lease it is kept in memory, for :attr:`restored`.

        Args:
            value: None, bool, int, float, str, and lists and dicts of these; keys are str. A tuple
                comes back as a list. At most 1 MiB of JSON.

        Raises:
            LeaseLost: The lease is gone, or a later run was here; nothing was saved over its state.
            ShutdownRequested: As :meth:`beat`; *value* is saved.
            TaskCancelled: As :meth:`beat`; *value* is saved.
            TypeError: *value* is not JSON-able.
            CheckpointError: It was not saved: too large, no store, no answer. The lease is held.
        """
        if self.is_lost:
            self._lost(self._flags())
        elif self._board.owns(self._slot):
            self._board.write_time(self._slot, BEAT, host_seconds())
        try:
            self._checkpoints.save(value)
        except Superseded:
            self._superseded()
        self.beat()

    @property
    def restored(self) -> Any:
        """What the last run of this task saved, a new object at each access; None if nothing.

        Read it before the first :meth:`checkpoint`: the first access asks the store, later ones
        return the same.

        Raises:
            LeaseLost: A later run was here.
            CheckpointError: It cannot be read; it was left as it is.
        """
        try:
            return self._checkpoints.restored()
        except Superseded:
            return self._superseded()

    def _superseded(self) -> None:
        """Tell of a loss that the store of checkpoints knows of before the board does."""
        self._lost(beatboard.FLAG_TAKEN)

    @property
    def heartbeat(self) -> Heartbeat:
        """The heartbeat behind this context, for code that takes one; its beats count here."""
        if self._heartbeat is None:
            # One step, so that two threads get the same one.
            made = vars(self).setdefault("_first_heartbeat", _ContextHeartbeat(self))
            self._heartbeat = made
        return self._heartbeat

    @property
    def remaining(self) -> float:
        """Seconds until the lease expires if nothing extends it; infinite without a lease."""
        if not self.leased:
            return math.inf
        flags = self._flags()
        if flags is None or flags & beatboard.FLAG_LOST:
            return 0.0
        deadline = self._board.read_time(self._slot, beatboard.DEADLINE)
        return max(0.0, deadline - host_seconds())

    @property
    def deadline(self) -> datetime | None:
        """When the lease expires if nothing extends it; None without a lease."""
        if not self.leased:
            return None
        return SystemClock().wall() + timedelta(seconds=self.remaining)

    @property
    def elapsed(self) -> float:
        """Seconds since the last beat."""
        last = self._board.read_time(self._slot, BEAT)  # first, or a beat in between is negative
        return host_seconds() - last

    @property
    def shutting_down(self) -> bool:
        """Whether the worker was asked to stop."""
        return self.leased and self._board.shutting_down

    @property
    def cancelled(self) -> bool:
        """Whether somebody cancelled the task; checks without beating."""
        return self.leased and bool((self._flags() or 0) & beatboard.FLAG_CANCELLED)

    @property
    def is_lost(self) -> bool:
        """Whether the lease is gone; checks without beating."""
        return not self._observed and self.remaining <= 0

    def check(self) -> None:
        """Raise what :meth:`beat` would raise, without proving progress."""
        if not host_seconds() + self._base < self._record[GATE] < self._limit:
            self._may_go_on()

    def end(self, outcome: Outcome) -> None:
        """Say how the run ended; for the worker parts."""
        self._board.tell_outcome(self._slot, outcome)

    def _start(self) -> bool:
        """Begin to run: the first beat. False: the message was taken back just now."""
        return starting.begin(self._board, self._slot)

    def _flags(self) -> int | None:
        """Return what the keeper told this lease; None if the record is another lease's by now."""
        return self._board.read_flags(self._slot)

    def _may_go_on(self) -> bool:
        """Find out why the gate is closed: raise, or tell if a beat still counts. Seldom called."""
        flags = self._flags()
        lost = self.is_lost
        if lost:
            self._lost(flags)
        if flags is None:
            return False
        if flags & beatboard.FLAG_CANCELLED:
            self._cancel()
        if flags & beatboard.FLAG_SHUTDOWN:
            raise ShutdownRequested(self.task_id)
        return not lost

    def _cancel(self) -> None:
        """Tell of the cancelling. The first time is a beat: to clean up, it has a whole lease."""
        if not self._told_to_cancel:
            self._told_to_cancel = True
            self._board.write_time(self._slot, BEAT, host_seconds())
        raise TaskCancelled(self.task_id)

    def _lost(self, flags: int | None) -> None:
        reason = "expired"
        if flags is None or flags & beatboard.FLAG_TAKEN:
            reason = "another delivery owns the message"
        elif flags & beatboard.FLAG_MAX_DURATION:
            reason = "lease_max_duration reached"
        elif flags & beatboard.FLAG_LIMIT:
            reason = "the broker holds no message longer"
        told, self._told = self._told, True
        if self._aborts:
            raise LeaseLost(self.task_id, reason)
        if not told:
            text = "lease of task %s lost (%s); the task runs on"
            logger.warning(text, self.task_id, reason, extra=self._fields)


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

    def elapsed(self) -> float:
        """Return the seconds since the context's last beat."""
        return self._context.elapsed
