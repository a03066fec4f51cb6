"""``ToolContext``: the interface of a lease for a leased task's code.

A context writes times and reads times on the beat board, nothing else: no lock, no I/O, no broker;
only checkpoints go to their store. Without a lease (a direct call, an eager task, a test) it has a
private board of a few cells with a deadline that never comes, so there is one code path.
"""

from __future__ import annotations

import functools
import math
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from celery_lease import board as beatboard
from celery_lease.board import BEAT, DONE, GATE, PROGRESS, TOTAL, Board, Slot, starting
from celery_lease.core.clock import SystemClock, host_seconds
from celery_lease.core.counting import total_of
from celery_lease.core.loss import FLAG_CANCELLED, FLAG_LOST
from celery_lease.core.policy import Mode, OnLost
from celery_lease.core.ticket import Ticket
from celery_lease.task import gate, subprocesses
from celery_lease.task.checkpoints import Checkpoints, Superseded
from celery_lease.task.context_heartbeat import NOT_SENT, ContextHeartbeat
from celery_lease.task.iterating.loop import iterate

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator

    from celery_lease.core.heartbeat import Heartbeat

T = TypeVar("T")


class ToolContext:
    """A leased task's view of its lease. Any thread of the task may use it."""

    _loss_known = _cancel_raised = False
    _confirmed_until = 0.0  #: by the broker, after the board's deadline
    _has_checkpoints = False
    _make_checkpoints: Callable[[str], Checkpoints] = Checkpoints

    def __init__(
        self,
        board: Board,
        slot: Slot,
        *,
        task_id: str = "",
        ticket: Ticket | None = None,
    ) -> None:
        self._board, self._slot = board, slot
        self._record, self._base, self._limit = board.record(slot)
        self._quiet: list[float] = []  # ends of the open quiet periods
        self._heartbeat: ContextHeartbeat | None = None
        self.task_id = task_id
        self.leased = ticket is not None
        self._ticket = ticket = ticket or Ticket(id=task_id)
        self.fencing_token = ticket.token
        self.deliveries = ticket.deliveries
        self.worker_id = ticket.worker
        self._aborts = ticket.on_lost == OnLost.ABORT
        self._observed = ticket.mode == Mode.OBSERVE
        self._published = ticket.publishes

    def beat(
        self, done: float | None = None, total: float | None = None, note: str | None = None
    ) -> None:
        """Prove progress; optionally report how much is done.

        Args:
            done: The amount that is done, in any unit.
            total: The whole amount, in the same unit.
            note: A short text for display; at most 120 bytes are kept.

        Raises:
            LeaseLost: The lease is gone; stop side effects and let it pass.
            ShutdownRequested: The worker stops and the task is interruptible; let it pass.
            TaskCancelled: The task was cancelled; clean up, within ``lease_extension``, and let it
                pass.
        """
        record = self._record
        stamp = host_seconds() + self._base
        if stamp < record[GATE] < self._limit or gate.may_go_on(self):
            record[BEAT] = stamp
        else:
            done = total = note = None  # the record may belong to another lease
        if note is not None:
            self._board.report(self._slot, done, total, note)
        elif done is not None or total is not None:
            try:  # as Board.report does, but without a call: this runs in the innermost loops
                if done is not None:
                    record[DONE] = done
                if total is not None:
                    record[TOTAL] = total
                record[PROGRESS] += 1.0
            except (OverflowError, TypeError, ValueError):
                self._board.report(self._slot, done, total, None)
        if self._heartbeat is not None:
            self._heartbeat.count()

    def track(
        self, iterable: Iterable[T], total: float | None = None, *, start: int = 0
    ) -> Iterator[T]:
        """Iterate over *iterable*; beat for every item and report how many are done.

        Args:
            iterable: The items.
            total: The number of all items; by default *start* and ``len(iterable)``.
            start: The number of items done before, to continue the count of an earlier run.

        Raises:
            LeaseLost: As :meth:`beat`.
            ValueError: *start* is no whole number, or negative.
        """
        self.beat(start, total_of(iterable, total, start))
        for done, item in enumerate(iterable, start + 1):
            yield item
            self.beat(done)

    def iterate(
        self,
        source: Callable[[Any], Iterable[T]] | Iterable[T],
        *,
        cursor: Callable[[T], Any] | None = None,
        every: float = 5.0,
        name: str | None = None,
        total: float | None = None,
        on_mismatch: Literal["raise", "restart"] = "raise",
    ) -> Iterator[T]:
        """Iterate as :meth:`track` does, and resume where the last run of this task stopped.

        The place is saved in the task's checkpoint, at most each *every* seconds and when the loop
        is left. An item is completed when the next one is asked for. After an orderly end of the
        run no completed item comes again; after a kill those of the last *every* seconds do. No
        item is skipped. The item in whose body the run ended, or the loop was left, comes again.

        Args:
            source: With *cursor*, a function that takes the last item's cursor, at first None, and
                returns the items after it in their order. Without, a sequence, a file that is read
                by lines, or an iterable with the same items in each run: these are resumed by
                position. No iterator and no set.
            cursor: Returns an item's cursor: JSON, datetime, date, UUID, Decimal, and tuples,
                lists and dicts of these.
            every: Seconds between two saves.
            name: The name of the loop within its task, or within the item of an outer loop.
            total: The number of all items, for the progress; by default a sequence's length. Of
                nested loops the outermost reports progress.
            on_mismatch: The reaction to a saved place of another loop: "raise", or "restart" to
                begin from the start.

        Raises:
            TypeError: The source cannot be resumed, or a cursor not be saved; it names what can.
            ValueError: An argument is wrong, or the task has already begun a loop of this name.
            LeaseLost: As :meth:`beat`; so are ShutdownRequested and TaskCancelled.
            CheckpointError: There is no store, it cannot be read, it has the place of another loop,
                or the loop has ended and that could not be saved.
        """
        return iterate(
            self,
            source,
            cursor=cursor,
            every=every,
            name=name,
            total=total,
            on_mismatch=on_mismatch,
        )

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Name one tool or phase in the progress, beating before and, if it succeeds, after."""
        self.beat(note=name)
        yield
        self.beat()

    def tool(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call *function* as a step of its name and return its result."""
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
        """Run a subprocess; beat on its output, and end it when the lease is lost.

        The arguments are those of :func:`subprocess.run`. Output that is not redirected is
        captured, unless ``capture_output=False``. Only captured output counts as progress: a
        command that is silent, or writes to a file of yours, for longer than ``lease_extension``
        loses the lease; put it into :meth:`quiet`.

        To end a command, the command and its process group are terminated, and 5 seconds later all
        processes that it started are killed, on Linux also those that left the group. The command
        gets a group of its own; if you choose a group yourself (also by ``start_new_session`` or
        ``preexec_fn``) that holds other processes, only the command's own process is terminated.
        When the task's process ends, for any reason, all are killed at once. Background processes
        of a command that ends by itself are left alone.

        A small process of celery-lease (``shim.py``) stands between the two and does that. It
        passes through exit codes, and signals that are sent to it; ``preexec_fn`` is called for it.

        Raises:
            LeaseLost: The lease was lost; the command was ended. Any other error here ends the
                command, too, such as a time limit's.
            subprocess.CalledProcessError: *check* is set and the command failed.
            subprocess.TimeoutExpired: *timeout* seconds have passed; the command was ended.
            ValueError: *input* and ``stdin`` were both given.
        """
        return subprocesses.run(self, command, input=input, check=check, timeout=timeout, **popen)

    @contextmanager
    def quiet(self, seconds: float) -> Iterator[None]:
        """Announce a call of at most *seconds* that cannot beat.

        The lease is extended for that time and no longer: a call that takes longer loses it.

        Raises:
            ValueError: *seconds* is not a positive, finite number.
            LeaseLost: The lease is gone, before or after.
        """
        if isinstance(seconds, bool) or not 0 < seconds < math.inf:
            raise ValueError(f"quiet() needs a positive number of seconds, not {seconds!r}")
        until = host_seconds() + seconds
        self.beat()
        self._quiet.append(until)
        self._write_quiet()
        try:
            yield
            self.beat()
        finally:
            self._quiet.remove(until)
            self._write_quiet()

    def _write_quiet(self) -> None:
        """Write the latest end of the open quiet periods, which may be nested."""
        if self._board.owns(self._slot):
            until = max(self._quiet, default=0.0)
            self._board.write_time(self._slot, beatboard.QUIET, until)

    def checkpoint(self, value: Any) -> None:
        """Save a JSON-able state for the next run of this task; beat before and after.

        It replaces the last one. The task's success removes it; a crash, a lost lease, a retry and
        a failure do not. It is saved before a request to stop is raised, so an interruptible task
        that ends here resumes from here. Without a lease it is kept in memory, for
        :attr:`restored`.

        Args:
            value: None, bool, int, float, str, and lists and dicts of these; keys are str. A tuple
                comes back as a list. At most 1 MiB of JSON.

        Raises:
            LeaseLost: The lease is gone, or a later run saved its state, which is kept.
            ShutdownRequested: As :meth:`beat`; *value* is saved.
            TaskCancelled: As :meth:`beat`; *value* is saved.
            TypeError: *value* is not JSON-able.
            CheckpointError: It was not saved: too large, no store, no answer. The lease is held.
        """
        if self.is_lost:
            gate.lost(self, self._flags())
        elif self._board.owns(self._slot):
            self._board.write_time(self._slot, BEAT, host_seconds())
        try:
            self._checkpoints.save(value)
        except Superseded:
            gate.superseded(self)
        self.beat()

    @property
    def restored(self) -> Any:
        """The state that the last run of this task saved, as a new object each time; None: none.

        Read it before the first :meth:`checkpoint`: the first access asks the store, later ones
        return the same state.

        Raises:
            LeaseLost: A later run has used the checkpoint.
            CheckpointError: It cannot be read; it is kept unchanged.
        """
        try:
            return self._checkpoints.restored()
        except Superseded:
            return gate.superseded(self)

    @property
    def heartbeat(self) -> Heartbeat:
        """The heartbeat of this context, for code that takes a heartbeat; its beats count here."""
        if self._heartbeat is None:
            # One step, so that two threads get the same object.
            made = vars(self).setdefault("_first_heartbeat", ContextHeartbeat(self))
            self._heartbeat = made
        return self._heartbeat

    @property
    def remaining(self) -> float:
        """Seconds until the lease expires without an extension; infinite without a lease."""
        if not self.leased:
            return math.inf
        flags = self._flags()
        if flags is None or flags & FLAG_LOST:
            return 0.0
        deadline = self._board.read_time(self._slot, beatboard.DEADLINE)
        return max(0.0, deadline - host_seconds())

    @property
    def deadline(self) -> datetime | None:
        """When the lease expires without an extension; None without a lease."""
        if not self.leased:
            return None
        return SystemClock().wall() + timedelta(seconds=self.remaining)

    @property
    def elapsed(self) -> float:
        """Seconds since the last beat."""
        last = self._board.read_time(self._slot, BEAT)  # first: a beat in between makes it negative
        return host_seconds() - last

    @property
    def shutting_down(self) -> bool:
        """Whether the worker was asked to stop."""
        return self.leased and self._board.shutting_down

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled; does not beat."""
        return not self._may_go_on_for(0.0) and bool((self._flags() or 0) & FLAG_CANCELLED)

    @property
    def is_lost(self) -> bool:
        """Whether the lease is gone; does not beat."""
        return not (self._may_go_on_for(0.0) or self._observed) and self.remaining <= 0

    def check(self) -> None:
        """Raise the errors of :meth:`beat` without proving progress."""
        if not self._may_go_on_for(0.0):
            gate.may_go_on(self)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled; a forked process has the context without that.

        Raises:
            TypeError: Always; the message has the remedy.
        """
        raise TypeError(NOT_SENT)

    @functools.cached_property
    def _checkpoints(self) -> Checkpoints:
        """Those of its task id, made at the first use; two threads get the same object."""
        self._has_checkpoints = True
        made = self._make_checkpoints(self.task_id)
        return vars(self).setdefault("_checkpoints", made)  # type: ignore[no-any-return]

    @property
    def _fields(self) -> dict[str, object]:
        """The fields of a log line."""
        return self._ticket.fields

    def _may_go_on_for(self, seconds: float) -> bool:
        """Whether the gate is open for so long; then the lease is held, and nothing is asked."""
        return host_seconds() + self._base + seconds < self._record[GATE] < self._limit

    def _start(self) -> bool:
        """Begin to run: the first beat. False: the message was taken back at this moment."""
        return starting.begin(self._board, self._slot)

    def _flags(self) -> int | None:
        """Return the keeper's flags; None if the record belongs to another lease by now."""
        return self._board.read_flags(self._slot)
