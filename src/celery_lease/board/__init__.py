"""The beat board: shared memory between task processes and the worker's main process.

One fixed-size record a lease. Each cell has exactly one writer: the task writes its beats, quiet
period and progress; the keeper writes the gate, the deadline and the flags. All writes are single
aligned 8-byte stores, so there is no lock: a process that is killed or stopped in the middle of a
beat leaves nothing behind that another would wait for.

Invariant: a cell written for one lease is never taken for another's. Every time on the board
carries the record's generation, records are reused in turn (oldest first, with others in between),
and a reader ignores values of another generation than its own. So a task that still beats long
after its lease ended, or a thread that outlived it, can neither keep another lease alive nor take
another's deadline for its own, until a million leases later.

Times are doubles: with them a beat, which adds and compares times, costs a third less than with
64-bit integers, which Python keeps in three digits. A cell holds
``generation * SPAN + seconds since the board's epoch``, exact to 15 microseconds.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import uuid
from dataclasses import dataclass, field
from enum import IntEnum

from celery_lease.board import file as boardfile
from celery_lease.board.lending import Lending
from celery_lease.core.clock import host_seconds

# A double has 53 bits: 27 for seconds (four years), 10 for generations, 16 for fractions.
SPAN = 2.0**27
GRAINS = 2.0**16  # in a second; write_time rounds down to one
LONGEST = SPAN - 1.0
#: A board's epoch is a multiple of this, so it lasts for two years on a host of any age.
EPOCHS = SPAN / 2

RECORD_BYTES = 320
RECORD_CELLS = RECORD_BYTES // 8
NOTE_BYTES = 120

# The first cache line of a record is the task's, the second the keeper's, the next two are the
# note's, and the last is the loop's. All cells are times, except OUTCOME, CLOSED, FLAGS,
# PUBLISHING, WITHDRAWN, IN_SPAN and ASKED (the task's), GRANTED and NOTE_LENGTH (integers), and
# DONE, TOTAL, PROGRESS (the number of reports) and SINCE (numbers).
BEAT, QUIET, STARTED, DONE, TOTAL, PROGRESS, OUTCOME, CLOSED = range(8)
GATE, DEADLINE, FLAGS, PUBLISHING, WITHDRAWN, IN_SPAN, GRANTED, ASKED = range(8, 16)
NOTE_LENGTH = 16
SINCE = 32

FLAG_BITS = 8

FLAG_MASK = (1 << FLAG_BITS) - 1

# Cells of record 0, which is never lent.
SHUTTING_DOWN, MARK, EPOCH = range(3)
#: Value of MARK, so that a file under an outdated address is not taken for a board. Version 1.
MARK_VALUE = int.from_bytes(b"leases\x00\x01", "little")


class Outcome(IntEnum):
    """The end of a run, for a main process that gets its pool's report only after the hooks."""

    UNREPORTED = 0
    DONE = 1  #: its outcome is stored: acknowledge
    HANDED_OVER = 2  #: it stopped because its worker does: return the message
    DISCARDED = 3  #: it had lost its lease
    REJECTED = 4  #: its failure is stored, and must not be acknowledged: drop the message
    NOT_STORED = 5  #: its outcome could not be stored: return the message, as a loss


class BoardFull(Exception):
    """Every record is in use."""


@dataclass(slots=True, unsafe_hash=True)  # to make a frozen one would take three times as long
class Slot:
    """A record lent to one lease. It is never changed."""

    index: int
    generation: int
    first: int = field(init=False, repr=False, compare=False)  #: index of the record's first cell
    #: The offset that marks flags with the slot's generation.
    mark: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.first, self.mark = self.index * RECORD_CELLS, self.generation << FLAG_BITS


@dataclass(frozen=True, slots=True)
class Progress:
    """The last progress that a task reported; None for parts that it did not report."""

    done: float | None = None
    total: float | None = None
    note: str = ""
    reports: int = 0  #: number of reports
    #: Host seconds at which a loop would have begun that did all of it in one run; None: no loop.
    since: float | None = None

    def rate(self, now: float) -> float | None:
        """Return the items per second of a loop, over all its runs; None: unknown."""
        if self.since is None or self.done is None or not self.since < now:
            return None
        return self.done / (now - self.since)


class Board:
    """The records of one worker.

    The creating process lends slots; task processes neither hold nor need its lock.
    """

    def __init__(self, memory: mmap.mmap, address: str, fd: int = -1) -> None:
        self.memory = memory
        self.address = address
        self.cells = memoryview(memory).cast("Q")
        self.numbers = memoryview(memory).cast("d")
        self._fd = fd
        self._lending = Lending(len(memory) // RECORD_BYTES)

    @classmethod
    def create(
        cls, slots: int = 65536, *, epoch: float | None = None, named: bool = False
    ) -> Board:
        """Create a board for *slots* - 1 leases; a record takes memory from its first use on.

        Args:
            slots: The number of records; one is the worker's own.
            epoch: The host's seconds from which the times count; None: the last multiple of EPOCHS.
            named: Processes that are not forks of this one open the board by its address, a file's
                path. If not, only forks inherit it, which needs no permissions: a process that
                changed its user may be kept from all files of its parent.
        """
        size = slots * RECORD_BYTES
        if named:
            fd, address = boardfile.create()
            os.ftruncate(fd, size)
        else:
            fd, address = -1, f"inherited-{uuid.uuid4().hex}"
        board = cls(mmap.mmap(fd, size), address, fd)
        board._begin(epoch)
        _boards[address] = board
        return board

    @classmethod
    def private(cls) -> Board:
        """Create a board for one context outside of a worker; its forks share it."""
        board = cls(mmap.mmap(-1, 2 * RECORD_BYTES), "")
        board._begin(None)
        return board

    @classmethod
    def at(cls, address: str) -> Board:
        """Return the board at *address*: inherited by a forked child, opened by other processes.

        Raises:
            OSError: It cannot be reached from this process: the worker that created it is gone, or
                the file may not be opened.
        """
        if address not in _boards:
            board = cls(boardfile.mapped(address, RECORD_BYTES), address)
            if board.cells[MARK] != MARK_VALUE:
                raise FileNotFoundError(address)
            _boards[address] = board
        return _boards[address]

    def _begin(self, epoch: float | None) -> None:
        if epoch is None:
            epoch = host_seconds() // EPOCHS * EPOCHS
        self.numbers[EPOCH] = epoch
        self.cells[MARK] = MARK_VALUE

    def record(self, slot: Slot) -> tuple[memoryview[float], float, float]:
        """Return what beats need: the cells of a slot's record, as doubles; a base and a limit.

        The sum of a time and the base has the slot's generation; all such sums are below the limit.
        """
        first, mark = slot.first, slot.generation * SPAN
        cells = self.numbers[first : first + RECORD_CELLS]
        return cells, mark - self.numbers[EPOCH], mark + SPAN

    def lend(self, deadline: float | None = None) -> Slot:
        """Lend a blank record, whose task may beat until *deadline*.

        Raises:
            BoardFull: There is no free record.
        """
        taken = self._lending.take()
        if taken is None:
            raise BoardFull
        slot = Slot(*taken)
        start = slot.index * RECORD_BYTES
        self.memory[start : start + RECORD_BYTES] = _BLANK
        if deadline is not None:
            self._open(slot, deadline)
        return slot

    @property
    def is_inherited(self) -> bool:
        """Whether its task processes are forks, which have it without opening anything."""
        return self._fd < 0

    @property
    def is_full(self) -> bool:
        """Whether all records are lent."""
        return self._lending.is_all_lent

    def free(self, slot: Slot, flags: int = 0) -> None:
        """Take a record back, with *flags* for a task that still beats."""
        self._set_flags(slot, flags)
        self._lending.free(slot.index)

    def read_time(self, slot: Slot, cell: int) -> float:
        """Return a time in seconds, or 0.0 if the cell is blank or another generation's."""
        value = self.numbers[slot.first + cell] - slot.generation * SPAN
        return value + self.numbers[EPOCH] if 0.0 < value < SPAN else 0.0

    def write_time(self, slot: Slot, cell: int, seconds: float) -> None:
        """Write a time in seconds with the slot's generation; clamped to the times that fit."""
        time = seconds - self.numbers[EPOCH]
        if not 0.0 <= time <= LONGEST:
            time = min(max(time, 0.0), LONGEST)
        value = slot.generation * SPAN + math.floor(time * GRAINS) / GRAINS
        self.numbers[slot.first + cell] = value

    def owns(self, slot: Slot) -> bool:
        """Whether the record belongs to the slot, or was last lent to it. For the task's side."""
        return 0.0 < self.numbers[slot.first + DEADLINE] - slot.generation * SPAN < SPAN

    def allow(self, slot: Slot, deadline: float) -> None:
        """Allow the slot's task to beat until *deadline*, unless it was flagged."""
        if self.is_latest(slot):
            self._open(slot, deadline)

    def _open(self, slot: Slot, deadline: float) -> None:
        first = slot.first
        self.write_time(slot, DEADLINE, deadline)
        if not self.cells[first + FLAGS] & FLAG_MASK:
            self.numbers[first + GATE] = self.numbers[first + DEADLINE]

    def flag(self, slot: Slot, flags: int) -> None:
        """Set flags for the slot's task, which its next beat reads. The flags are written first.

        For one thread at a time, like :meth:`allow`.
        """
        if self.is_latest(slot):
            self._set_flags(slot, flags)

    def _set_flags(self, slot: Slot, flags: int) -> None:
        first = slot.first
        self.cells[first + FLAGS] = slot.mark | (self.cells[first + FLAGS] & FLAG_MASK) | flags
        self.numbers[first + GATE] = 0.0

    def write_outcome(self, slot: Slot, outcome: Outcome) -> None:
        """Write the end of the task, after its outcome is stored."""
        self.cells[slot.first + OUTCOME] = slot.mark | outcome

    def read_outcome(self, slot: Slot) -> Outcome:
        """Return the end that the task wrote; ``UNREPORTED``: none yet."""
        value = self.cells[slot.first + OUTCOME]
        return Outcome(value & FLAG_MASK if value >> FLAG_BITS == slot.generation else 0)

    def read_flags(self, slot: Slot) -> int | None:
        """Return the flags of the slot's task; None if the record belongs to another lease now."""
        value = self.cells[slot.first + FLAGS]
        if (value and value >> FLAG_BITS != slot.generation) or not self.owns(slot):
            return None
        return value & FLAG_MASK

    def is_latest(self, slot: Slot) -> bool:
        """Whether the record was not lent again since; a late writer must not touch another's.

        For the process that lends records.
        """
        return self._lending.is_latest(slot.index, slot.generation)

    @property
    def shutting_down(self) -> bool:
        return bool(self.cells[SHUTTING_DOWN])

    def announce_shutdown(self) -> None:
        """Show all tasks that the worker was asked to stop."""
        self.cells[SHUTTING_DOWN] = 1

    def report(self, slot: Slot, done: float | None, total: float | None, note: str | None) -> None:
        """Write the parts of progress that are given.

        Raises:
            TypeError: *done* or *total* is not a number.
        """
        first, numbers = slot.first, self.numbers
        try:
            if done is not None:
                numbers[first + DONE] = done
            if total is not None:
                numbers[first + TOTAL] = total
        except (OverflowError, TypeError, ValueError):
            for cell, number in ((DONE, done), (TOTAL, total)):
                if number is not None:
                    numbers[first + cell] = _number(number)
        if note is not None:
            self._write_note(slot, note)
        numbers[first + PROGRESS] += 1.0

    def read_progress(self, slot: Slot) -> Progress:
        """Return the last progress; a note that is being written may be a mix of two."""
        first = slot.first
        length = min(self.cells[first + NOTE_LENGTH], NOTE_BYTES)
        start = (first + NOTE_LENGTH + 1) * 8
        note = bytes(self.memory[start : start + length]).decode(errors="replace")
        done, total, since = (
            None if math.isnan(number) else number
            for number in (self.numbers[first + cell] for cell in (DONE, TOTAL, SINCE))
        )
        return Progress(done, total, note, int(self.numbers[first + PROGRESS]), since)

    def _write_note(self, slot: Slot, note: str) -> None:
        text = cut(note)
        start = (slot.first + NOTE_LENGTH + 1) * 8
        self.memory[start : start + len(text)] = text
        self.cells[slot.first + NOTE_LENGTH] = len(text)

    def close(self) -> None:
        """Forget the board and remove its file; its memory is freed with the last process."""
        _boards.pop(self.address, None)
        if self._fd >= 0:
            boardfile.remove(self._fd, self.address)
            self._fd = -1


_BLANK = bytearray(RECORD_BYTES)
_BLANK[DONE * 8 : TOTAL * 8 + 8] = struct.pack("=2d", math.nan, math.nan)
_BLANK[SINCE * 8 : SINCE * 8 + 8] = struct.pack("=d", math.nan)


def cut(note: str) -> bytes:
    """Return a note as UTF-8, cut at a whole character to :data:`NOTE_BYTES` bytes."""
    text = str(note).encode(errors="replace")
    return text[:NOTE_BYTES].decode(errors="ignore").encode()


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        raise TypeError(f"progress must be numbers, not {value!r}") from None


# Boards of this process by address. Written by the worker's main thread before the pool starts
# (children inherit it) and by a task process that opens a board; a dict store is atomic.
_boards: dict[str, Board] = {}
